"""Many clients stream at once and one after the other: every piece arrives, once, in order (scripts/server_soak.py in small)."""

from __future__ import annotations

from scripted_server import serving
from scripts.server_soak import script, soak

from ds4py.server.prompting import Defaults


def test_queued_streams_lose_nothing() -> None:
    with serving(script(16, 12), defaults=Defaults(think=False)) as server:
        tally = soak(server.url, 16, 12, 2.0)
        assert not tally.wrong, tally.wrong[:3]
        assert len(tally.whole) >= 16 and tally.n_pieces >= 16 * 12
        server.until(lambda: server.running == server.queued == 0)  # a client has read its end before the server has noted it
