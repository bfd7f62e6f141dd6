"""What a hub's status means, as a sentence with a next step.

Gated, private, wrong token and absent look alike from outside; the status, whether a token was sent and the hub's `X-Error-Code`
tell them apart. Two kinds of failure: a refusal (a `Ds4Error`) ends the run, asking again would be answered the same;
`AgainError` is worth another try after a pause. Nothing the server wrote is shown, only its status: a page of HTML is no
sentence.
"""

from __future__ import annotations

import email.utils
import time
from collections.abc import Mapping
from http import HTTPStatus

from ds4py.errors import Ds4Error, FormatError, ResourceError
from ds4py.hub.place import Hub


class AgainError(Exception):
    """A failure that may pass; `wait`: seconds the server asked for, None if it did not."""

    def __init__(self, reason: str, wait: float | None = None) -> None:
        super().__init__(reason)
        self.wait = wait


class RangeError(AgainError):
    """The server cannot give the middle of this file; the whole of it may still work."""


class StaleError(Exception):
    """What is being downloaded is not what the hub's listing promised: look at the listing again."""


class WrongHashError(StaleError):
    """All bytes came, and they are not the ones that were promised."""


def refused(status: int, headers: Mapping[str, str], hub: Hub, what: str) -> Exception:
    """The exception for an answer of the hub itself that is no success. `what` names the repository or "FILE of REPO"."""
    if status == 429 or status == 408 or status >= 500:
        return AgainError(f"{hub.host} answered {_named(status)}", retry_after(headers.get("retry-after")))
    if status == 416:
        return RangeError(f"{hub.host} has no bytes at the place asked for (416)")
    code = headers.get("x-error-code", "")
    return _access(status, code, hub, what) or _absent(status, code, hub, what) or _other(status, hub, what)


def _access(status: int, code: str, hub: Hub, what: str) -> Ds4Error | None:
    gated = code == "GatedRepo"
    if status in (401, 403) and hub.token is None:
        reason = "is gated: accept its terms on its page first" if gated else "is private or gated, or does not exist"
        return ResourceError(
            f"{what} {reason}; {hub.host} wants to know who asks ({status}) and no token was given: make one in the account's "
            "settings there, then set HF_TOKEN or run `hf auth login`"
        )
    if status == 401 and gated:
        status = 403
    if status == 401:
        return ResourceError(
            f"{hub.host} does not accept the token from {hub.token_source} (401): it is mistyped, expired or revoked; make a "
            f"new one, or leave it out if {what} is public"
        )
    if status == 403:
        return ResourceError(
            f"{what} is gated or restricted (403): the token from {hub.token_source} is known to {hub.host}, but its account "
            "has no access; ask for it on the page of the repository, or use a token that may read it"
        )
    return None


def _absent(status: int, code: str, hub: Hub, what: str) -> Ds4Error | None:
    if status not in (404, 410):
        return None
    private = "" if hub.token else ", or it is private and no token was given"
    if code == "EntryNotFound" or " of " in what:
        return ResourceError(f"{hub.host} has no {what} ({status}); it may have another name now, see the repository's page")
    return ResourceError(f"{hub.host} has no repository {what} ({status}): check the spelling{private}")


def _other(status: int, hub: Hub, what: str) -> Ds4Error:
    return FormatError(f"{hub.host} answered {_named(status)} for {what}, which no hub should; check HF_ENDPOINT and the proxy")


def storage_refused(status: int, headers: Mapping[str, str], host: str) -> AgainError:
    """The same for the host that a hub sends us on to. Its addresses are signed for a short time, so every refusal is worth
    asking the hub for a fresh one."""
    if status == 416:
        return RangeError(f"{host} has no bytes at the place asked for (416)")
    return AgainError(f"{host}, which stores the file, answered {_named(status)}", retry_after(headers.get("retry-after")))


def retry_after(text: str | None) -> float | None:
    """Seconds from a Retry-After header, which holds a number or a date; None if it holds neither."""
    if not text:
        return None
    if text.strip().isdigit():
        return float(text)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError):
        return None


def _named(status: int) -> str:
    try:
        return f"{status} ({HTTPStatus(status).phrase})"
    except ValueError:
        return str(status)
