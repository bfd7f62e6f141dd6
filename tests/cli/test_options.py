"""The option table: one spelling means one row, documented names exist, and asking it is cheap."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ds4py.cli.options import EXCLUSIVE, OPTIONS, TOPICS, environment, for_command, spellings

HEAVY = ("torch", "numpy", "llvmlite", "jinja2", "tokenizers", "typer", "pydantic", "rich", "prompt_toolkit", "huggingface_hub")

# Names that documented command lines use. One list per source, so that a lost alias is found.
DS4 = (
    "-m --model -t --threads -c --ctx -n --tokens -p --prompt --prompt-file --prefix-file -sys --system --raw --raw-prompt "
    "--temp --top-p --min-p --seed --think --think-max --nothink --think-level --inspect --dump-tokens --dump-logits "
    "--dump-logprobs --logprobs-top-k --decode-consistency --perplexity-file --imatrix-dataset --imatrix-out "
    "--imatrix-max-prompts --imatrix-max-tokens --imatrix-min-expert-samples --head-test --first-token-test "
    "--metal-graph-test --metal-graph-full-test --metal-graph-prompt-test --vision --metal --cuda --rocm --cpu --backend "
    "--gpu-vram --gpu-devices --cuda-tensor-parallel --power --ssd-streaming --ssd-streaming-cold "
    "--ssd-streaming-cache-experts --ssd-streaming-full-layers --ssd-streaming-preload-experts --simulate-used-memory "
    "--quality --warm-weights --expert-profile --chdir --prefill-chunk --mtp --glm-mtp --mtp-model --mtp-draft --mtp-margin "
    "--mtp-timing --glm-mtp-timing --dspark --dspark-confidence --dspark-strict --mtp-exact-sampling --role --layers "
    "--listen --coordinator --dist-prefill-chunk --dist-prefill-window --dist-activation-bits --dist-replay-check --debug "
    "--tensor-parallel --transport --rdma-device --rdma-gid-index --tensor-parallel-token-prefill --debug-hash "
    "--dir-steering-file --dir-steering-ffn --dir-steering-attn --server --help"
).split()
LLAMA = (
    "-c --ctx-size -n --n-predict --predict -t -s --seed --temp --temperature --top-k --top-p --min-p --repeat-penalty "
    "--repeat-last-n --presence-penalty --frequency-penalty --logit-bias -l -f --file -sys --system-prompt -r "
    "--reverse-prompt -fa --flash-attn --jinja -ngl --gpu-layers --n-gpu-layers -b -ub -hf -md --model-draft --spec-type "
    "--spec-default --spec-draft-n-max --spec-draft-p-min -ngld -devd -ctkd -ctvd -td -tbd -lcs -lcd --spec-synth-len "
    "--spec-synth-rates --mmproj -no-cnv -cnv -st --no-mmap --mlock -ctk -ctv --ignore-eos --chat-template "
    "--chat-template-file --grammar -j --list-devices --mtp-head --draft --draft-max"
).split()


@pytest.mark.parametrize("command", sorted(TOPICS))
def test_no_spelling_belongs_to_two_rows(command: str) -> None:
    spellings(for_command(command))


@pytest.mark.parametrize("name", DS4 + LLAMA)
def test_documented_names_are_rows(name: str) -> None:
    assert name in spellings(for_command("ds4"))


def test_a_clash_is_found() -> None:
    with pytest.raises(ValueError, match="--model is a name of both"):
        spellings([*for_command("ds4"), for_command("ds4")[0]])


def test_rows_are_complete() -> None:
    for option in OPTIONS:
        assert option.topics and set(option.commands) <= set(TOPICS), option.name
        assert option.why or option.status in ("works", "accepted"), f"{option.name} is refused without a reason"
        assert option.help or option.status == "never", option.name
        assert (option.bare is None) or option.bare in option.choices, option.name
        for command in option.commands:
            assert set(option.topics) & set(TOPICS[command]), f"{option.name} is on no help page of {command}"
        if option.range is not None and isinstance(option.default, int | float):
            assert option.range.holds(option.default), option.name


def test_groups_name_rows() -> None:
    for command, groups in EXCLUSIVE.items():
        names = {option.name for option in for_command(command)}
        assert all(name in names for group in groups for name in group)


def test_environment_names_are_unique_per_command() -> None:
    names = [name for option in for_command("ds4") for name in option.env]
    assert len(names) == len(set(names)) == len(environment("ds4"))


def test_importing_the_table_imports_nothing_heavy() -> None:
    code = f"import sys, ds4py.cli.options, ds4py.cli.help, ds4py.cli.chat; print([m for m in {HEAVY!r} if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
