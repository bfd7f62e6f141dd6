"""Position-addressed caches: what a session remembers of the tokens it has evaluated.

A `State` holds one cache per attention layer and answers one question for the rest of the program: what is true up to position
`pos`? Everything stored at or past `pos` is garbage by definition, so forgetting is an assignment and nothing is ever erased.
"""

from ds4py.state.caches import Cache, FullCache, Parts, PoolCache, SlidingCache
from ds4py.state.state import Snapshot, State

__all__ = ["Cache", "FullCache", "Parts", "PoolCache", "SlidingCache", "Snapshot", "State"]
