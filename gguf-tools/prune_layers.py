#!/usr/bin/env python3
"""A smaller model out of a larger one: some of its layers, stored bytes untouched, under new numbers.

    prune_layers.py --in MODEL.gguf --keep 0-5,24-29 --out DRAFT.gguf

Vocabulary, embedding and head stay, so the result can draft for the model it came from. Metadata that has one entry per layer is
cut likewise. Where the layers came from is written into the file (`ds4.pruned.*`). Without training afterwards expect little:
distil_draft.py trains what comes out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ds4py.errors import Ds4Error, FormatError, UsageError
from ds4py.gguf import GgufFile, GgufType, NewTensor, Tensor, Value, open_gguf, write_gguf

GEMMA3_PERIOD = 6  # every sixth layer sees everything, which the file leaves unsaid


def layer_list(text: str, n_layers: int) -> list[int]:
    """"0-2,5" as [0, 1, 2, 5], ascending. UsageError for what is no list of layers of the model."""
    chosen: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise UsageError(f"--keep takes layers like 0-5,24-29, not {text!r}")
        chosen |= set(range(int(first), min(int(last or first), n_layers) + 1))
    if not chosen or max(chosen) >= n_layers:
        raise UsageError(f"--keep {text} does not choose from layers 0 to {n_layers - 1}")
    return sorted(chosen)


def pruned_metadata(g: GgufFile, keep: Sequence[int]) -> dict[str, Any]:
    """The file's metadata for the layers `keep`."""
    n_layers, prefix = g.require("block_count"), f"{g.architecture}."
    kv: dict[str, Any] = {}
    for key, value in g.kv.typed.items():
        per_layer = key.startswith(prefix) and value.element is not None and len(value.data) == n_layers
        kv[key] = Value(GgufType.ARRAY, [g.kv[key][i] for i in keep], value.element) if per_layer else value
    kv[prefix + "block_count"] = len(keep)
    pattern = prefix + "attention.sliding_window_pattern"
    if g.architecture == "gemma3" and not isinstance(g.kv.get(pattern), Sequence):
        period = g.kv.get(pattern, GEMMA3_PERIOD)
        kv[pattern] = [(i + 1) % period != 0 for i in keep]
    kv.pop("general.size_label", None)
    kv["general.name"] = f"{g.kv.get('general.name', g.path.stem)}, {len(keep)} of {n_layers} layers"
    kv["ds4.pruned.source"] = g.path.name
    kv["ds4.pruned.layers"] = list(keep)
    return kv


def pruned_tensors(tensors: Mapping[str, Tensor], keep: Sequence[int]) -> Iterator[NewTensor]:
    """The tensors outside of layers and those of the layers `keep`, renumbered. FormatError for layers the file lacks."""
    number = {old: new for new, old in enumerate(keep)}
    found = set()
    for name, tensor in tensors.items():
        prefix, _, rest = name.partition(".")
        layer, _, part = rest.partition(".")
        if prefix == "blk" and layer.isdecimal():
            if int(layer) not in number:
                continue
            found.add(int(layer))
            name = f"blk.{number[int(layer)]}.{part}"
        yield NewTensor(name, tensor.shape, tensor.type, lambda tensor=tensor: stored(tensor))
    if found != set(keep):
        raise FormatError(f"the file has no tensors of layer {min(set(keep) - found)}")


def stored(tensor: Tensor) -> Iterator[Any]:
    """The tensor's bytes, whose pages are given back once they are written."""
    yield tensor.data
    tensor.release()


def prune(source: Path, keep: str, target: Path) -> int:
    """Write the file; the number of layers in it."""
    g = open_gguf(source)
    layers = layer_list(keep, int(g.require("block_count")))
    write_gguf(target, pruned_metadata(g, layers), list(pruned_tensors(g.tensors, layers)))
    return len(layers)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="prune_layers.py", description="Keep some layers of a GGUF model.")
    parser.add_argument("--in", dest="source", type=Path, required=True, metavar="MODEL", help="the model to cut")
    parser.add_argument("--keep", required=True, metavar="LAYERS", help="layers to keep, such as 0-5,24-29")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the file to write")
    args = parser.parse_args(argv)
    try:
        n = prune(args.source, args.keep, args.out)
    except Ds4Error as error:
        print(f"prune_layers.py: {error}", file=sys.stderr)
        return error.exit_code
    print(f"{args.out}: {n} layers, {args.out.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
