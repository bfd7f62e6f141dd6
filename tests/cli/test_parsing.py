"""Command lines and what becomes of them: values, order, sentences and exit codes, in one process."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4py.cli.argv import scan
from ds4py.cli.options import environment, for_command
from ds4py.cli.parsing import parse
from ds4py.errors import UsageError


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in environment("ds4"):
        monkeypatch.delenv(name, raising=False)


# argv, row key, value
ACCEPTED = [
    (["-p", "hi"], "prompt", "hi"),
    (["--prompt=hi"], "prompt", "hi"),
    (["--prompt=a=b"], "prompt", "a=b"),
    (["-p", "--help"], "prompt", "--help"),
    (["-p", "-"], "prompt", "-"),
    (["-p", ""], "prompt", ""),
    (["-sys", ""], "system", ""),
    (["-sys", "x"], "system", "x"),
    (["--system-prompt", "x"], "system", "x"),
    ([], "system", "You are a helpful assistant"),
    ([], "ctx", 32768),
    (["-c", "1"], "ctx", 1),
    (["-c4096"], "ctx", 4096),
    (["--ctx-size", "77"], "ctx", 77),
    (["-c", "1", "-c", "2"], "ctx", 2),
    ([], "tokens", 50000),
    (["-n", "-1"], "tokens", -1),
    (["--n-predict", "5"], "tokens", 5),
    (["--n_predict", "5"], "tokens", 5),
    ([], "temp", 1.0),
    (["--temp", "0"], "temp", 0.0),
    (["--temp", ".5"], "temp", 0.5),
    (["--temperature", "1e-1"], "temp", 0.1),
    (["--top-p", "0"], "top_p", 0.0),
    (["--top_p", "1"], "top_p", 1.0),
    ([], "min_p", 0.05),
    (["--seed", "18446744073709551615"], "seed", 2**64 - 1),
    (["-s", "-1"], "seed", -1),
    (["-fa"], "flash_attn", "on"),
    (["-fa", "off"], "flash_attn", "off"),
    (["-fa", "-p", "x"], "flash_attn", "on"),
    (["--color"], "color", "on"),
    (["--color", "off"], "color", "off"),
    (["-l", "3-5", "-l", "4+1"], "logit_bias", ("3-5", "4+1")),
    (["-r", "a", "--stop", "b"], "reverse_prompt", ("a", "b")),
    (["--jinja"], "jinja", True),
    (["-ngl", "99"], "n_gpu_layers", "99"),
    (["-no-cnv"], "raw", True),
    (["-f", "x"], "prompt_file", "x"),
]


@pytest.mark.parametrize("argv, key, value", ACCEPTED)
def test_accepted(argv: list[str], key: str, value: object) -> None:
    found = parse("ds4", argv).table[key]
    assert found == value and type(found) is type(value)


# argv, what the one sentence must hold
REFUSED = [
    (["--temp", "nan"], ["--temp", "of at least 0", "'nan'"]),
    (["--temp", "inf"], ["--temp"]),
    (["--temp", "-0.1"], ["--temp", "of at least 0"]),
    (["--temp", "hot"], ["--temp", "number"]),
    (["--temp", ""], ["--temp"]),
    (["--top-p", "7"], ["--top-p", "from 0 to 1", "'7'"]),
    (["--top-p", "-0.1"], ["--top-p", "from 0 to 1"]),
    (["--min-p", "2"], ["--min-p", "from 0 to 1"]),
    (["--top-k", "-3"], ["--top-k", "of at least 0"]),
    (["-c", "0"], ["--ctx", "from 1 to 16777216", "'0'"]),
    (["-c", "1.5"], ["--ctx", "whole number"]),
    (["-c", "4k"], ["--ctx", "whole number"]),
    (["-c", "4_096"], ["--ctx", "whole number"]),
    (["-c", "99999999999999999999"], ["--ctx"]),
    (["-n", "-5"], ["--tokens", "of at least 1, or -1"]),
    (["-n", "0"], ["--tokens"]),
    (["-t", "0"], ["--threads", "from 1 to 1024"]),
    (["--seed", "18446744073709551616"], ["--seed", "18446744073709551615"]),
    (["--repeat-penalty", "0"], ["--repeat-penalty", "greater than 0"]),
    (["--repeat-last-n", "-2"], ["--repeat-last-n"]),
    (["--presence-penalty", "nan"], ["--presence-penalty", "a number"]),
    (["--logprobs-top-k", "129"], ["--logprobs-top-k", "from 1 to 128"]),
    (["--decode-consistency", "0"], ["--decode-consistency"]),
    (["--backend", "tpu"], ["--backend", "auto, cpu, "]),
    (["--backend", "cuda"], ["--backend cuda", "GPU kernels"]),
    (["--backend", "metal"], ["--backend metal", "no Metal"]),
    (["-ctk", "q8_0"], ["--cache-type-k", "f16"]),
    (["-m", ""], ["--model", "file name"]),
    (["--promt", "x"], ["unknown option --promt", "did you mean --prompt?"]),
    (["--ctx-sise", "x"], ["unknown option --ctx-sise", "did you mean --ctx-size?"]),
    (["--qqqqqq"], ["unknown option --qqqqqq"]),
    (["-zz"], ["unknown option -zz"]),
    (["--raw=1"], ["--raw takes no value"]),
    (["-p"], ["-p needs a value"]),
    (["--temp"], ["--temp needs a value"]),
    (["hello"], ["unexpected argument 'hello'", "-p"]),
    (["--raw", "(hello)"], ["unexpected argument '(hello)'"]),
    (["--", "-p"], ["unexpected argument '-p'"]),
    (["-p", "a", "--prompt-file", "b"], ["--prompt and --prompt-file", "together"]),
    (["-p", "a", "--perplexity-file", "b"], ["--prompt and --perplexity-file", "together"]),
    (["--inspect", "--dump-tokens"], ["--inspect and --dump-tokens"]),
    (["--raw", "--prefix-file", "x"], ["--raw and --prefix-file"]),
    (["--metal"], ["--metal is not supported", "no Metal"]),
    (["--rocm"], ["--rocm is not supported"]),
    (["--cuda"], ["--cuda is not in this build yet", "GPU kernels"]),
    (["--vision", "x"], ["--vision is not supported", "text only"]),
    (["--mmproj", "x"], ["--mmproj is not supported", "text only"]),
    (["-mm", "x"], ["-mm is not supported"]),
    (["--role", "worker"], ["--role is not supported", "one machine"]),
    (["--listen", "0.0.0.0", "1"], ["--listen is not supported"]),
    (["--dspark-confidence", "1.5"], ["--dspark-confidence must be a number from 0 to 1"]),
    (["--mtp"], ["--mtp is not in this build yet", "MTP"]),
    (["--mtp", "file.gguf"], ["--mtp is not in this build yet"]),
    (["--draft-max", "3"], ["--draft-max is not supported", "--spec-draft-n-max"]),
    (["--ssd-streaming-full-layers", "-1"], ["--ssd-streaming-full-layers", "from 0 to 1000"]),
    (["--dir-steering-file", "x"], ["--dir-steering-file is not in this build yet", "steering"]),
    (["--model-url", "a/b"], ["--model-url is not in this build yet"]),
    (["--power", "50"], ["--power is not supported"]),
    (["--server"], ["--server is not supported", "ds4-server"]),
    (["--think-level", "5"], ["--think-level is not in this build yet"]),
    (["--context-shift"], ["--context-shift is not supported"]),
]


@pytest.mark.parametrize("argv, fragments", REFUSED)
def test_refused_by_one_sentence(argv: list[str], fragments: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        parse("ds4", argv)
    sentence = str(caught.value)
    assert caught.value.exit_code == 2
    assert "\n" not in sentence
    for fragment in fragments:
        assert fragment in sentence


def test_every_refused_row_is_refused_under_every_name() -> None:
    for option in for_command("ds4"):
        for name in option.names if option.status in ("later", "never") else ():
            with pytest.raises(UsageError, match="not in this build yet|not supported"):
                parse("ds4", [name, "x"])


def test_the_last_of_options_that_override_each_other_counts() -> None:
    values = parse("ds4", ["--think", "--nothink", "-p", "x", "--think-max"])
    assert values.last_given("--think", "--think-max", "--nothink") == "--think-max"
    assert parse("ds4", ["-p", "--nothink"]).last_given("--nothink") is None


def test_environment_is_a_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "512")
    values = parse("ds4", [])
    assert values.integer("ctx") == 512 and values.was_given("--ctx")
    assert parse("ds4", ["-c", "64"]).integer("ctx") == 64
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "")
    assert not parse("ds4", []).was_given("--ctx")


def test_a_bad_environment_value_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "many")
    with pytest.raises(UsageError, match="LLAMA_ARG_CTX_SIZE.*--ctx.*whole number"):
        parse("ds4", [])


def test_a_refused_environment_value_is_not_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_SPEC_DRAFT_P_SPLIT", "0.1")
    with pytest.raises(UsageError, match="LLAMA_ARG_SPEC_DRAFT_P_SPLIT.*--spec-draft-p-split.*not supported"):
        parse("ds4", [])


@pytest.mark.parametrize(
    "argv, topic",
    [
        (["--help"], ""),
        (["-h"], ""),
        (["--help", "sampling"], "sampling"),
        (["--help=sampling"], "sampling"),
        (["-m", "x", "--help", "-p", "y"], ""),
        (["--metal", "--help"], None),
        (["-p", "--help"], None),
        (["-p", "x"], None),
    ],
)
def test_help_is_found_only_where_an_option_may_stand(argv: list[str], topic: str | None) -> None:
    if argv[0] == "--metal":
        with pytest.raises(UsageError):
            scan("ds4", argv)
    else:
        assert scan("ds4", argv).topic == topic


@given(
    st.lists(
        st.text(max_size=8) | st.sampled_from([name for o in for_command("ds4") for name in o.names] + ["1", "0", "=", "--"]),
        max_size=6,
    )
)
def test_any_command_line_gives_values_or_one_sentence(argv: list[str]) -> None:
    if scan_asks_help(argv):
        return
    try:
        values = parse("ds4", argv)
    except UsageError as error:
        assert "\n" not in str(error) or any("\n" in word for word in argv)
    else:
        assert set(values.table) == {option.key for option in for_command("ds4") if option.name != "--help"}


def scan_asks_help(argv: list[str]) -> bool:
    try:
        return scan("ds4", argv).topic is not None
    except UsageError:
        return False
