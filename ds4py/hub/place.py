"""Where to ask and as whom: endpoint, token, cache, patience.

The order of everything is written here once. Token: the option, `HF_TOKEN` (both are one row of the option table), the file
`HF_TOKEN_PATH` or `HF_HOME/token`. Endpoint: the option or `HF_ENDPOINT`, else the public hub. Cache: the option or
`HF_HUB_CACHE`, `HF_HOME/hub`, `XDG_CACHE_HOME/huggingface/hub`, `~/.cache/huggingface/hub`. The library reads the same names,
but once at its import; they are resolved here so that an option wins and a test can set them. Proxies are the session's
business (`HTTPS_PROXY`, `NO_PROXY`, either case).

The invariant: the token is in no sentence and in no `repr`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from ds4py.errors import ResourceError, UsageError

PUBLIC_ENDPOINT = "https://huggingface.co"


@dataclass(frozen=True)
class Patience:
    """timeout: seconds without a byte; tries: failures in a row without progress; pauses double from `pause` to `longest`."""

    timeout: float = 30.0
    tries: int = 6
    pause: float = 1.0
    longest: float = 60.0
    longest_asked: float = 900.0  # a longer Retry-After ends the run with its number


@dataclass(frozen=True)
class Hub:
    endpoint: str
    token: str | None = field(repr=False)
    token_source: str
    cache: Path
    offline: bool
    patience: Patience = Patience()

    @property
    def host(self) -> str:
        """The name for sentences: no user, no password, no path."""
        return host_of(self.endpoint)


def host_of(url: str) -> str:
    parts = urlsplit(url)
    return (parts.hostname or "?") + (f":{parts.port}" if parts.port else "")


def hub_from(
    environ: Mapping[str, str],
    token: str | None = None,
    token_source: str = "--token",
    endpoint: str | None = None,
    cache: str | None = None,
    patience: Patience | None = None,
) -> Hub:
    """The hub for this run. UsageError for an endpoint that is no address or a token that no header can carry; ResourceError for
    a token file that cannot be read."""
    home = Path(environ.get("HF_HOME") or Path(environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface").expanduser()
    address = (endpoint or environ.get("HF_ENDPOINT") or PUBLIC_ENDPOINT).rstrip("/")
    try:
        parts = urlsplit(address)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        sound = False
    if not sound:
        raise UsageError("HF_ENDPOINT (or --hf-endpoint) must be an address like https://host, and this is none")
    if token is None:
        token, token_source = _stored_token(environ, home)
    token = (token or "").strip() or None
    if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
        raise UsageError(f"the token from {token_source} has characters that no token has; copy it again")
    folder = Path(cache or environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE") or home / "hub").expanduser()
    offline = (environ.get("HF_HUB_OFFLINE") or environ.get("TRANSFORMERS_OFFLINE") or "").lower() in ("1", "true", "yes", "on")
    return Hub(address, token, token_source if token else "", folder, offline, patience or Patience())


def _stored_token(environ: Mapping[str, str], home: Path) -> tuple[str | None, str]:
    if environ.get("HF_TOKEN"):
        return environ["HF_TOKEN"], "HF_TOKEN"
    path = Path(environ.get("HF_TOKEN_PATH") or home / "token").expanduser()
    try:
        return path.read_text(encoding="ascii", errors="replace"), str(path)
    except (FileNotFoundError, NotADirectoryError):
        return None, ""
    except OSError as error:
        raise ResourceError(f"cannot read the token file {path}: {error.strerror or error}") from error
