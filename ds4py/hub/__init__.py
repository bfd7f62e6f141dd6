"""Model files from a model hub: which file a name means, what it costs here, and bytes that arrive whole or not at all.

The idea: a target is a row of a table (`targets`), a name becomes files by the hub's own listing (`listing`, `choosing`), a file
is a sequence of pieces with known sizes and hashes (`plan`), and one loop makes it so (`transfer`). Nothing in here prints:
sentences and progress go to callables of the caller. huggingface_hub is imported by `listing` and `connection` alone, when used.
"""

from __future__ import annotations

from ds4py.hub.fetching import Fetched, Listeners, Policy, fetch_files
from ds4py.hub.place import Hub, Patience, hub_from
from ds4py.hub.targets import REMOVED, TARGETS, Target

__all__ = ["REMOVED", "TARGETS", "Fetched", "Hub", "Listeners", "Patience", "Policy", "Target", "fetch_files", "hub_from"]
