"""The draft training of gguf-tools, importable from tests: `import draft_tools` first, then `from drafts.eagle3 import ...`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ROOT / "gguf-tools"
PAIR = Path(__file__).parent / "golden" / "pair"  # made by tests/scripts/fitting_pair.py
KINDS = ("eagle3", "dflash", "dspark")

if str(TOOLS) not in sys.path:
    sys.path.append(str(TOOLS))


def tool(name: str, folder: Path = TOOLS) -> ModuleType:
    """A script as a module."""
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
