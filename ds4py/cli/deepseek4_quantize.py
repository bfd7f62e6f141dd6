"""`gguf-tools/deepseek4_quantize.py`: ds4's command line for making DeepSeek V4 files, said again as one for ds4-quantize.

The idea: a recipe and a few rules are all there is to a DeepSeek V4 file, so this module only translates. Its options for parts
of the network become --tensor-type rules, the narrower ones first; ds4's own --tensor-type takes the beginning of a name where
ds4-quantize takes a regular expression.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from ds4py.cli import quantize

RECIPES: Mapping[str, str] = MappingProxyType(
    {"q2": "DS4_Q2", "q2-q4": "DS4_Q2_Q4", "q4": "DS4_Q4", "mxfp4": "DS4_MXFP4"}
)
# Option -> the tensors it means. The first rule that fits a tensor decides, so the narrow ones stand first.
PARTS: Mapping[str, str] = MappingProxyType(
    {
        "routed-w1": r"ffn_gate_exps\.",
        "routed-w2": r"ffn_down_exps\.",
        "routed-w3": r"ffn_up_exps\.",
        "experts": r"ffn_(gate|up|down)_exps\.",
        "indexer-q": r"indexer\.attn_q_b\.",
        "attention-proj": r"(blk|mtp)\.\d+\.attn_(q_a|q_b|kv|output_a|output_b)\.",
        "shared": r"ffn_(gate|up|down)_shexp\.",
        "embedding": r"^token_embd\.",
        "output": r"^output\.weight$",
    }
)


def main(argv: Sequence[str] | None = None) -> int:
    """The script's entry point; returns the exit code."""
    args = _parser().parse_args(argv)
    written = [Path(name) for name in (args.out, args.dspark_out) if name is not None]
    there = [path for path in written if path.exists()]
    if there and not (args.overwrite or args.dry_run or args.resume):  # --resume knows whether they are its own
        print(f"{_NAME}: {there[0]} is there already; --overwrite replaces it", file=sys.stderr)
        return 1
    return quantize.main(list(words(args)))


def words(args: argparse.Namespace) -> Iterator[str]:
    """The same as arguments of ds4-quantize."""
    yield from (args.hf, args.out, "--type", RECIPES[args.quant])
    for rule in args.tensor_type:
        name, equals, kind = rule.partition("=")
        yield from ("--tensor-type", f"^{re.escape(name)}{equals}{kind}")
    for option, pattern in PARTS.items():
        kind = getattr(args, option.replace("-", "_"))
        if kind is not None:
            yield from ("--tensor-type", f"{pattern}={kind}")
    for option in ("imatrix", "dspark_out", "threads"):
        if getattr(args, option) is not None:
            yield from (f"--{option.replace('_', '-')}", getattr(args, option))
    for flag in ("imatrix_strict", "dry_run", "resume"):
        if getattr(args, flag):
            yield f"--{flag.replace('_', '-')}"


_NAME = "deepseek4_quantize.py"


def _parser() -> argparse.ArgumentParser:
    about = "A DeepSeek V4 checkpoint folder to GGUF, and its DSpark stages (or MTP block) to a support file."
    parser = argparse.ArgumentParser(prog=_NAME, description=about, allow_abbrev=False)
    parser.add_argument("--hf", required=True, metavar="FOLDER", help="the checkpoint: config.json and the safetensors files")
    parser.add_argument("--out", required=True, metavar="FILE", help="the file to write")
    parser.add_argument("--quant", choices=RECIPES, default="q2", help="what to make of the routed experts (q2)")
    for option in PARTS:
        parser.add_argument(f"--{option}", metavar="TYPE", help="the type of this part, in place of the recipe's")
    parser.add_argument(
        "--tensor-type", action="append", default=[], metavar="BEGINNING=TYPE", help="the type of tensors by how names begin"
    )
    parser.add_argument("--imatrix", metavar="FILE", help="importance matrix (.dat or GGUF)")
    parser.add_argument("--imatrix-strict", action="store_true", help="fail if the matrix lacks a tensor that needs it")
    parser.add_argument("--dspark-out", metavar="FILE", help="also write the support file of what drafts for the model")
    parser.add_argument("--threads", metavar="N", help="CPU threads (all that may be used)")
    parser.add_argument("--resume", action="store_true", help="keep what is done when the run stops, and go on from there")
    parser.add_argument("--dry-run", action="store_true", help="print every tensor's type and size, and write nothing")
    parser.add_argument("--overwrite", action="store_true", help="replace the output file if it is there")
    return parser
