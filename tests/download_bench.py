"""What tests of downloads share: one small file on the shelf, one client of the loopback hub, and what it said."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from pathlib import Path

import loopback_hub

from ds4py.hub import Hub, Listeners, Patience, Policy, fetch_files, hub_from
from ds4py.hub.choosing import plans_for
from ds4py.hub.fetching import Fetched
from ds4py.hub.targets import Wanted

REPO, FILE = "owner/models", "model-Q4_K_M.gguf"
CONTENT = random.Random(1).randbytes(1_500_000)
HASTY = Patience(timeout=1.5, tries=4, pause=0.0)


@dataclass
class Bench:
    """One client of the hub: `fetch()` gets the file, what was said is in `said`."""

    shelf: loopback_hub.Hub
    folder: Path
    said: list[str] = field(default_factory=list)
    planned: list[tuple[int, int]] = field(default_factory=list)
    wanted: Wanted = Wanted(REPO, FILE)

    def hub(self, **options: object) -> Hub:
        patience = options.pop("patience", HASTY)
        assert isinstance(patience, Patience)
        return hub_from(os.environ, endpoint=self.shelf.endpoint, patience=patience, **options)  # type: ignore[arg-type]

    def fetch(self, hub: Hub | None = None, **policy: bool) -> Fetched:
        heard = Listeners(self.said.append, planned=lambda plans, need, free: self.planned.append((need, free)))
        wish = (self.wanted.repo, lambda listing: plans_for(self.wanted, listing))
        return fetch_files(hub or self.hub(), (wish,), self.folder, heard, Policy(**policy))[0]

    @property
    def path(self) -> Path:
        return self.folder / FILE

    @property
    def part(self) -> Path:
        return self.folder / f"{FILE}.part"

    def never_wrong(self) -> bool:
        """Whether no byte ever lay at a wrong place: otherwise the hash would have found it, and that would have been said."""
        return not any("SHA-256" in line or "looking at" in line for line in self.said)

    def names(self) -> list[str]:
        """What lies in the folder, without notes about checked files."""
        return sorted(entry.name for entry in self.folder.iterdir() if not entry.name.endswith(".checked"))

    def ranges(self) -> list[str]:
        return [request.headers.get("range", "") for request in self.shelf.bytes_requests()]
