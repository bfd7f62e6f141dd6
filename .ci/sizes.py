"""Reports how large files and functions are and how much of the code is annotated and commented. Exit 1 over a hard bound.

Hard: no file over 600 lines; 95 % of functions within 45 lines; 90 % of functions fully annotated. Everything else is shown, so
that a drift is seen. A function's length runs from its `def` to its last line without the docstring: a contract is not a burden.
"""

from __future__ import annotations

import ast
import io
import statistics
import sys
import tokenize
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILE_LIMIT, FUNCTION_LIMIT = 600, 45
SHARE_SHORT, SHARE_ANNOTATED = 0.95, 0.90

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Sized:
    """One function: where, how long, and whether every parameter and the result have a type."""

    place: str
    length: int
    annotated: bool


def docstring_len(node: Function) -> int:
    """Lines of the function's docstring."""
    first = node.body[0]
    is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    return (first.end_lineno or first.lineno) - first.lineno + 1 if is_text else 0


def is_annotated(node: Function) -> bool:
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    arguments += [extra for extra in (node.args.vararg, node.args.kwarg) if extra is not None]
    named = [argument for argument in arguments if argument.arg not in ("self", "cls")]
    return node.returns is not None and all(argument.annotation is not None for argument in named)


def functions(path: Path, tree: ast.AST) -> list[Sized]:
    nodes = [node for node in ast.walk(tree) if isinstance(node, Function)]
    return [
        Sized(
            f"{path.relative_to(ROOT)}:{node.lineno} {node.name}",
            (node.end_lineno or node.lineno) - node.lineno + 1 - docstring_len(node),
            is_annotated(node),
        )
        for node in nodes
    ]


def comment_lines(source: str, tree: ast.AST) -> int:
    """Lines that explain: comments and docstrings."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    lines = {token.start[0] for token in tokens if token.type == tokenize.COMMENT}
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(node):
            text = node.body[0]
            lines |= set(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    return len(lines)


def main() -> int:
    lengths: dict[str, int] = {}
    sized: list[Sized] = []
    comments = 0
    for path in sorted([*(ROOT / "ds4py").rglob("*.py"), *(ROOT / "gguf-tools").rglob("*.py")]):
        source = path.read_text()
        tree = ast.parse(source, str(path))
        lengths[str(path.relative_to(ROOT))] = source.count("\n")
        sized += functions(path, tree)
        comments += comment_lines(source, tree)
    return report(lengths, sized, comments)


def report(lengths: dict[str, int], sized: list[Sized], comments: int) -> int:
    """Print the figures; 1 if a hard bound is broken."""
    total = max(1, sum(lengths.values()))
    short = sum(item.length <= FUNCTION_LIMIT for item in sized) / max(1, len(sized))
    annotated = sum(item.annotated for item in sized) / max(1, len(sized))
    code_files = [count for count in lengths.values() if count > 3]  # an empty __init__ says nothing about size
    print(f"files: {len(lengths)}, {total} lines, median {statistics.median(code_files or [0]):.0f}, longest:")
    for name, count in sorted(lengths.items(), key=lambda item: -item[1])[:5]:
        print(f"  {count:5d}  {name}")
    print(f"functions: {len(sized)}, {short:.1%} within {FUNCTION_LIMIT} lines, {annotated:.1%} fully annotated, longest:")
    for item in sorted(sized, key=lambda item: -item.length)[:5]:
        print(f"  {item.length:5d}  {item.place}")
    print(f"lines that explain: {100 * comments / total:.0f} of 100")
    broken = [f"{name} has {count} lines, over {FILE_LIMIT}" for name, count in lengths.items() if count > FILE_LIMIT]
    if short < SHARE_SHORT:
        broken.append(f"only {short:.1%} of functions are within {FUNCTION_LIMIT} lines; {SHARE_SHORT:.0%} are asked")
    if annotated < SHARE_ANNOTATED:
        broken.append(f"only {annotated:.1%} of functions are fully annotated; {SHARE_ANNOTATED:.0%} are asked")
    print(*(f"BROKEN: {line}" for line in broken), sep="\n", end="\n" if broken else "")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
