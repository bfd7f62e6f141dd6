"""Model architectures: one readable file each, and what they share without knowing it.

`load_model(g, kernels)` is the door. An architecture file holds three classes: `Config` (the metadata, checked), `Layer` (the
weights of one block under their GGUF names) and `Model` (the forward, written with `protocols.Ops`). Running it (flattening
sessions into rows, checking, advancing states) is `running.LoadedModel`, once for all.
"""

from ds4py.models.registry import PLANNED, SUPPORTED, load_model
from ds4py.models.running import LoadedModel

__all__ = ["PLANNED", "SUPPORTED", "LoadedModel", "load_model"]
