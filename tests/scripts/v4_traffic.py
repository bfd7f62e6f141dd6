"""The table for DeepSeek V4 Flash: bytes that a token touches, memory that stays, and what that predicts.

    python tests/scripts/v4_traffic.py [--recipe DS4_Q2] [--depth 8000]
    python tests/scripts/v4_traffic.py --model FLASH.gguf --support SUPPORT.gguf

Without files the tensors are those of the released checkpoint by name and shape, in the types of a recipe of ds4-quantize.
Predictions are bytes over bandwidth: a bound that kernels, barriers and a disk come on top of.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from tiny_deepseek4 import FLASH, outline

from ds4py.cli.traffic import EXPERTS, LOOKED_UP, Shaped, Traffic, held_bytes, traffic
from ds4py.convert import Options, open_folder
from ds4py.gguf import GgmlType, GgufFile, open_gguf
from ds4py.quantize import Options as Quantising
from ds4py.quantize import make_plan as plan_types
from ds4py.quantize import recipe

USED, BLOCK, WINDOW, TOP_K, LATENT, INDEX = 6, 5, 128, 512, 1024, 256  # bytes of a row of latents, of an indexer's entry
SPEEDS = {"100 GB/s": 100e9, "4 TB/s": 4e12}


@dataclass(frozen=True)
class Named:
    """A tensor without data."""

    name: str
    shape: tuple[int, ...]
    type: GgmlType
    nbytes: int


def planned(g: GgufFile, name: str) -> list[Named]:
    """The tensors of a checkpoint as a recipe would store them."""
    plan = plan_types(g, Quantising(recipe(name), allow_requantize=True))
    return [Named(i.tensor.name, i.tensor.shape, i.type, i.type.nbytes(i.tensor.n_values)) for i in plan.tensors]


def drafting(support: Sequence[Shaped], model: Iterable[Shaped]) -> Traffic:
    """A block of drafts: its stages over five rows, the chain's second matrix for each of them, the model's output once more."""
    chained = next((held_bytes(t) for t in support if t.name.endswith("markov_w2.weight")), 0)
    head = next(held_bytes(t) for t in model if t.name == "output.weight")
    return traffic(support, USED, BLOCK) + Traffic(0, (BLOCK - 1) * chained + head)


def caches(depth: int) -> float:
    """Bytes of cached rows that a token's attention and indexers read: windows, 512 or all entries, and all indexer entries."""
    four, wide = depth // 4, depth // 128
    return 43 * min(depth, WINDOW) * LATENT + 21 * (min(four, TOP_K) * LATENT + four * INDEX) + 20 * wide * LATENT


def resident(tensors: Iterable[Shaped]) -> tuple[int, int]:
    """(bytes of experts in memory, of everything else but tables that are only looked up)."""
    experts = others = 0
    for t in tensors:
        if EXPERTS in t.name:
            experts += held_bytes(t)
        elif not t.name.endswith(LOOKED_UP):
            others += held_bytes(t)
    return experts, others


def table(model: Sequence[Shaped], support: Sequence[Shaped], depth: int) -> list[str]:
    plain, block = traffic(model, USED), traffic(model, USED, 1 + BLOCK)
    draft, cached = drafting(support, model), caches(depth)
    files = sum(t.nbytes for t in model), sum(t.nbytes for t in support)
    lines = [f"files: {files[0] / 2**30:.1f} GiB, support {files[1] / 2**30:.1f} GiB; a context of {depth:,} positions", ""]
    lines += ["| GB read by | experts | other weights | caches | together |", "| --- | --- | --- | --- | --- |"]
    rows = {
        "a token": (plain, cached),
        "a pass over 6 rows (5 drafts)": (block, 6 * cached),
        "making 5 drafts": (draft, 0.0),
    }
    for name, (t, c) in rows.items():
        lines.append(f"| {name} | {t.experts / 1e9:.2f} | {t.others / 1e9:.2f} | {c / 1e9:.3f} | {(t.total + c) / 1e9:.2f} |")
    whole = (block + draft).total + 6 * cached
    needed = whole / (plain.total + cached)
    lines += ["", "| ms a token at | " + " | ".join(SPEEDS) + " |", "| --- |" + " --- |" * len(SPEEDS)]
    kinds = {"plain": plain.total + cached, **{f"DSpark, {n:g} tokens a pass": whole / n for n in (1, 2, 3, 4)}}
    for name, n_bytes in kinds.items():
        lines.append(f"| {name} | " + " | ".join(f"{1e3 * n_bytes / speed:.2f}" for speed in SPEEDS.values()) + " |")
    lines += ["", f"DSpark pays above {needed:.2f} tokens a pass, if rows take experts independently of each other.", ""]
    lines += ["| GB in memory | experts | other weights |", "| --- | --- | --- |"]
    for name, tensors in (("model", model), ("support file", support)):
        experts, others = resident(tensors)
        lines.append(f"| {name} | {experts / 1e9:.2f} | {others / 1e9:.2f} |")
    n_seats = sum(t.shape[2] for t in [*model, *support] if "_down_exps" in t.name)
    each = sum(resident(list(tensors))[0] for tensors in (model, support)) / n_seats
    return [*lines, "", f"an expert takes {each / 1e6:.2f} MB; --ssd-streaming-cache-experts N holds N of {n_seats:,}"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="DS4_Q2")
    parser.add_argument("--depth", type=int, default=8000)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--support", type=Path)
    options = parser.parse_args()
    if options.model and options.support:
        model, support = (list(open_gguf(path).tensors.values()) for path in (options.model, options.support))
        print("\n".join(table(model, support, options.depth)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        path, exact = outline(Path(folder) / "flash", FLASH, draft="dspark"), Options(outtype="exact")
        made = [planned(open_folder(path, exact, support=own), options.recipe) for own in (False, True)]
    print("\n".join(table(*made, options.depth)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
