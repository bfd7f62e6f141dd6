"""The checks of .ci must see what they are for: each rule is broken once in a made-up package."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).resolve().parents[2] / ".ci"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"ci_{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("place", "source", "told"),
    [
        ("engine/a.py", "from ds4py.chat import x", "engine may not import chat"),
        ("engine/a.py", "def f():\n    import ds4py.tokenizer.bpe", "engine may not import tokenizer"),
        ("engine/a.py", "from ds4py import cli", "engine may not import cli"),
        ("engine/a.py", "from ..cli.options import OPTIONS", "engine may not import cli"),
        ("errors.py", "from ds4py import protocols", "errors may not import protocols"),
        ("models/a.py", "import torch.nn", "torch may be imported only in kernels/reference"),
        ("kernels/cpu/a.py", "import torch", "torch may be imported only in"),
        ("kernels/reference.py", "import llvmlite.ir", "llvmlite may be imported only in kernels/cpu/"),
        ("cli/a.py", "import gguf", "gguf may be imported only in tests"),
        ("novel/a.py", "", "novel is in no rule"),
        ("kernels/reference.py", "import torch", ""),
        ("models/a.py", "from ds4py import kernels\nfrom ds4py.state import State\nimport numpy", ""),
        ("engine/a.py", "from . import b\nfrom .b import c\nfrom ds4py.errors import Ds4Error", ""),
        ("cli/a.py", "from ds4py import __version__", ""),
    ],
)
def test_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, source: str, told: str) -> None:
    layers = load("layers")
    package = tmp_path / "ds4py"
    for name in ("chat", "cli", "tokenizer", "engine", "kernels", "state"):
        (package / name).mkdir(parents=True)
    (package / "protocols.py").touch()
    (package / "errors.py").touch()
    path = package / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    monkeypatch.setattr(layers, "ROOT", tmp_path)
    monkeypatch.setattr(layers, "PACKAGE", package)
    found = list(layers.complaints(path))
    assert (len(found) == 1 and told in found[0]) if told else found == []


def test_layers_start_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layers = load("layers")
    (tmp_path / "ds4py" / "cli").mkdir(parents=True)
    (tmp_path / "ds4py" / "__init__.py").touch()  # without it an installed ds4py would be found first
    (tmp_path / "ds4py" / "cli" / "options.py").write_text("import numpy")
    monkeypatch.setattr(layers, "ROOT", tmp_path)
    assert list(layers.heavy_at_start()) == ["import ds4py.cli.options loads numpy; import it where it is used"]


def test_sizes() -> None:
    sizes = load("sizes")
    source = (
        'def f(a: int, *b: int, c) -> int:\n    """One\n    two."""\n    return a\n'
        "class C:\n    def g(self) -> None:\n        pass  # why\n"
    )
    tree = ast.parse(source)
    first, second = sizes.functions(sizes.ROOT / "x.py", tree)
    assert (first.length, first.annotated) == (2, False)
    assert (second.length, second.annotated) == (2, True)
    assert sizes.comment_lines(source, tree) == 3


@pytest.mark.parametrize(
    ("n_lines", "length", "annotated", "code"),
    [(600, 45, True, 0), (601, 45, True, 1), (10, 46, True, 1), (10, 45, False, 1)],
)
def test_sizes_bounds(n_lines: int, length: int, annotated: bool, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = load("sizes")
    assert sizes.report({"a.py": n_lines}, [sizes.Sized("a.py:1 f", length, annotated)], 1) == code
    assert ("BROKEN" in capsys.readouterr().out) == bool(code)
