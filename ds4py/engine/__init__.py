"""The engine: open a model once, make sessions, generate tokens. It never sees text."""

from ds4py.engine.accept import TargetDraw
from ds4py.engine.depth import FixedDepth
from ds4py.engine.engine import Engine, EngineInfo, EngineOptions
from ds4py.engine.generate import generate, step
from ds4py.engine.schedule import FixedSchedule, Penalties
from ds4py.engine.session import Session, SessionOptions, SyncReport

__all__ = [
    "Engine",
    "EngineInfo",
    "EngineOptions",
    "FixedDepth",
    "FixedSchedule",
    "Penalties",
    "Session",
    "SessionOptions",
    "SyncReport",
    "TargetDraw",
    "generate",
    "step",
]
