"""How good are an engine's greedy tokens? Score them with the float32 model.

    python tests/scripts/fp32_regret.py [MODEL ...] [--kernels cpu]

Two sound engines differ in their greedy texts after a few tokens, since near-ties fall either way (two builds of llama.cpp
differ on 10 of these 15 prompts), so equal ids are no criterion. Instead every engine's own text is fed to transformers, which
computes in float32 on the dequantised weights of the same file; the regret of a token is the float32 maximum minus the float32
logit of the token chosen, 0 when it is the argmax.

Exit code 1 unless, on every model, as many tokens are the float32 argmax as in the worse of llama.cpp's two builds and the worst
regret is not above the worse build's (both stored in golden/reference-greedy.json).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ds4py.gguf import open_gguf
from ds4py.kernels import open_kernels
from ds4py.models import load_model
from ds4py.protocols import Kernels, Model, Span

GOLDEN = Path(__file__).parent.parent / "golden" / "reference-greedy.json"
BUILDS = ("amx", "noamx")  # llama.cpp's two builds


@dataclass(frozen=True)
class Score:
    """Of one engine on one model's prompts."""

    n_argmax: int
    n_tokens: int
    worst: float

    @classmethod
    def of(cls, regrets: Sequence[float]) -> Score:
        return cls(sum(r == 0 for r in regrets), len(regrets), max(regrets))

    def __str__(self) -> str:
        return f"{self.n_argmax}/{self.n_tokens} argmax, worst {self.worst:.3f}"


def greedy(model: Model, kernels: Kernels, prompt_ids: Sequence[int], n_tokens: int) -> list[int]:
    """Plain greedy decoding without stop tokens, as the stored texts were made; whole tiles of the prompt are prefilled."""
    state = model.new_state(len(prompt_ids) + n_tokens, slack=0)
    tile = kernels.prefill_tile
    n_tiled = (len(prompt_ids) - 1) // tile * tile if tile else 0
    step = kernels.max_rows // tile * tile if tile else kernels.max_rows
    for at in range(0, n_tiled, step):
        model.forward([Span(state, prompt_ids[at : min(n_tiled, at + step)])], path="prefill")
    for at in range(n_tiled, len(prompt_ids), kernels.max_rows):
        out = model.forward([Span(state, prompt_ids[at : at + kernels.max_rows], n_logits=1)])
    chosen = [int(out.logits[0].argmax())]
    while len(chosen) < n_tokens:
        chosen.append(int(model.forward([Span(state, chosen[-1:], n_logits=1)]).logits[0].argmax()))
    return chosen


def fp32_model(path: Path) -> Any:
    """transformers' float32 model of a GGUF file."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_grad_enabled(False)
    # a folder is taken for a local model only; nothing is fetched
    return AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()


def regrets(judge: Any, prompt_ids: Sequence[int], chosen: Sequence[int]) -> list[float]:
    """Regret of each chosen token given the prompt and the tokens chosen before it."""
    import torch

    logits = judge(torch.tensor([[*prompt_ids, *chosen]])).logits[0, len(prompt_ids) - 1 : -1]
    own = logits.gather(1, torch.tensor([list(chosen)]).T)[:, 0]
    return [float(r) for r in (logits.max(-1).values - own)]


def bound(prompts: Mapping[str, Any]) -> tuple[dict[str, Score], int, float]:
    """Scores of llama.cpp's builds, and what is asked of us: the fewer argmaxes and the larger worst regret of the two."""
    scores = {build: Score.of([r for p in prompts.values() for r in p[f"fp32_regret_{build}"]]) for build in BUILDS}
    return scores, min(s.n_argmax for s in scores.values()), max(s.worst for s in scores.values())


def score_model(path: Path, prompts: Mapping[str, Any], kernels: Kernels) -> Score:
    model = load_model(open_gguf(path), kernels)
    texts = {name: greedy(model, kernels, p["prompt_ids"], len(p["greedy_amx"])) for name, p in prompts.items()}
    judge = fp32_model(path)
    return Score.of([r for name, p in prompts.items() for r in regrets(judge, p["prompt_ids"], texts[name])])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="parts of file names; all of the golden file's models if none is given")
    parser.add_argument("--kernels", default="cpu", help="backend to judge (see ds4py.kernels.open_kernels)")
    parser.add_argument("--folder", type=Path, default=os.environ.get("DS4_TEST_MODELS") or "~/.cache/ds4py/models")
    options = parser.parse_args()
    failed = False
    for file, golden in json.loads(GOLDEN.read_text()).items():
        if options.models and not any(part in file for part in options.models):
            continue
        theirs, n_argmax, worst = bound(golden["prompts"])
        ours = score_model(options.folder.expanduser() / file, golden["prompts"], open_kernels(options.kernels))
        met = ours.n_argmax >= n_argmax and ours.worst <= worst
        failed |= not met
        print(f"{file}\n  ours, {options.kernels:<16} {ours}   {'met' if met else 'NOT MET'}: >= {n_argmax}, <= {worst:.3f}")
        for build, score in theirs.items():
            print(f"  llama.cpp, {build:<11} {score}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
