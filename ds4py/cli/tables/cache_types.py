"""Types that other programs store keys and values in, and why this build does not: for the cache type options of all models."""

from __future__ import annotations

_ONLY = "keys and values are stored as f16 here"
_QUANTISED = f"{_ONLY}; quantised storage comes later"
_TURBO = f"{_ONLY}; TurboQuant storage is not in this build"

BARRED: tuple[tuple[str, str], ...] = (
    *((name, _ONLY) for name in ("f32", "bf16")),
    *((name, _QUANTISED) for name in ("q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")),
    *((name, _TURBO) for name in ("turbo2", "turbo3", "turbo4")),
)
