"""Checks that imports point one way and that heavy libraries stay in their rooms. Prints what breaks a rule; exit 1 if anything.

The idea: the rules are two small tables. `MAY_IMPORT` gives, for each folder of ds4py, the folders it may import from; `ROOMS`
gives, for each third-party library, the only places that may import it, at any depth of nesting. Imports are read from
the syntax tree, so an import inside a function counts too. What a tree cannot tell (what `import ds4py.cli.options` drags in) is
asked of a real interpreter.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "ds4py"

# errors and protocols (latent is a page of protocols) may be imported by all and import nothing else of ours.
_BASE = {"errors", "protocols", "latent"}
_FILES = _BASE | {"gguf"}
_MODEL = _FILES | {"quants", "kernels", "state", "models"}
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "protocols": {"latent"},
    "latent": {"protocols"},
    "gguf": _BASE,
    "hub": {"errors"},
    "quants": _FILES,
    "tokenizer": _FILES,
    "convert": _FILES | {"quants", "tokenizer"},
    "editing": _FILES,
    "quantize": _FILES | {"quants", "editing", "__init__"},
    "kernels": _FILES | {"quants"},
    "state": _FILES | {"quants"},
    "models": _MODEL,
    "drafters": _MODEL,
    "engine": _MODEL | {"drafters"},
    "chat": _FILES | {"tokenizer"},
    "agent": _MODEL | {"drafters", "engine", "chat", "tokenizer"},
    "server": _MODEL | {"drafters", "engine", "chat", "tokenizer"},
    "cli": _MODEL
    | {"editing", "quantize", "convert", "hub", "drafters", "engine", "chat", "tokenizer", "agent", "server", "__init__"},
    "__init__": set(),
}

# library -> path prefixes inside ds4py that may import it; an empty tuple means nowhere (tests and oracles only).
ROOMS: dict[str, tuple[str, ...]] = {
    "torch": ("kernels/reference", "kernels/triton/"),
    "triton": ("kernels/triton/",),
    "llvmlite": ("kernels/cpu/",),
    "tokenizers": ("tokenizer/",),
    "jinja2": ("chat/",),
    "llguidance": ("chat/",),
    "starlette": ("server/",),
    "uvicorn": ("server/",),
    "msgspec": ("server/",),
    "prompt_toolkit": ("cli/",),
    "typer": ("cli/",),
    "click": ("cli/",),
    "rich": ("cli/",),
    "matplotlib": ("cli/",),
    "huggingface_hub": ("hub/",),
    "llama_cpp": ("cli/",),
    "transformers": (),
    "gguf": (),
}

# Libraries that may not be loaded by the option table: `ds4 --help` answers from it.
NOT_AT_START = (
    "torch", "numpy", "llvmlite", "tokenizers", "jinja2", "matplotlib", "huggingface_hub", "prompt_toolkit", "transformers"
)


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, absolute dotted name) of everything the file imports, at any depth."""
    package = ["ds4py", *path.relative_to(PACKAGE).parent.parts]
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            if module == "ds4py":  # `from ds4py import gguf` imports the folder, not the package
                yield from ((node.lineno, f"ds4py.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, module


def layer(path: Path) -> str:
    """The folder of ds4py a file belongs to; a file at the top is its own layer."""
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else path.stem


def complaints(path: Path) -> Iterator[str]:
    """Every rule that one file breaks."""
    here, inside = layer(path), path.relative_to(PACKAGE).as_posix()
    where = path.relative_to(ROOT)
    if here not in MAY_IMPORT:
        yield f"{where}: {here} is in no rule; add its row to MAY_IMPORT in .ci/layers.py"
        return
    for line, name in imports(path):
        top, *rest = name.split(".")
        if top == "ds4py":
            there = rest[0] if rest and _is_layer(rest[0]) else "__init__"
            if there != here and there not in MAY_IMPORT[here]:
                yield f"{where}:{line}: {here} may not import {there} ({name})"
        elif top in ROOMS and not inside.startswith(ROOMS[top]):
            yield f"{where}:{line}: {top} may be imported only in {', '.join(ROOMS[top]) or 'tests'}"


def _is_layer(name: str) -> bool:
    return (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").exists()


def heavy_at_start() -> Iterator[str]:
    """What `import ds4py.cli.options` loads that it must not."""
    code = f"import ds4py.cli.options, sys; print(*[name for name in {NOT_AT_START!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        yield f"import ds4py.cli.options fails: {done.stderr.strip().splitlines()[-1]}"
    for name in done.stdout.split():
        yield f"import ds4py.cli.options loads {name}; import it where it is used"


def main() -> int:
    files = sorted(PACKAGE.rglob("*.py"))
    found = [line for path in files for line in complaints(path)] + list(heavy_at_start())
    print(*found, sep="\n", end="\n" if found else "")
    print(f"layers: {len(files)} files, {len(found)} broken rules")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
