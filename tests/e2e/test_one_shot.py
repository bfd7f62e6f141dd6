"""`ds4 -p ...` and its diagnostic modes on a real model."""

from __future__ import annotations

import json
import math
import os
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ds4py.cli.chat import main
from ds4py.gguf import open_gguf

DS4 = [sys.executable, "-m", "ds4py.cli.chat"]
STATS = re.compile(r"^ds4: prefill: \d+\.\d\d t/s, generation: \d+\.\d\d t/s$", re.MULTILINE)
SMALL = ["--temp", "0", "-c", "512", "-t", "1"]


class Ran:
    """What one in-process run of ds4 left."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


class Ds4:
    def __init__(self, capsys: pytest.CaptureFixture[str], model: Path) -> None:
        self._capsys, self._model = capsys, model

    def __call__(self, *argv: str) -> Ran:
        code = main(["-m", str(self._model), *SMALL, *argv])
        out, err = self._capsys.readouterr()
        return Ran(code, out, err)


@pytest.fixture
def ds4(capsys: pytest.CaptureFixture[str], smollm2_path: Path) -> Iterator[Ds4]:
    yield Ds4(capsys, smollm2_path)


def test_a_raw_prompt_is_continued(ds4: Ds4) -> None:
    ran = ds4("--raw", "-n", "8", "-p", "The capital of France is")
    assert ran.code == 0
    assert ran.out.startswith(" Paris")
    assert STATS.search(ran.err) and ran.err.splitlines()[-1].startswith("ds4: prefill:")
    assert re.search(r"^ds4: memory: KV \d+\.\d\d GiB", ran.err, re.MULTILINE)
    assert re.search(
        r"^ds4: ctx=512 prefill_cap=\d+ raw_kv_rows=512 compressed_kv_rows=0 backend=\S+ threads=1$", ran.err, re.MULTILINE
    )


def test_a_chat_prompt_is_answered_and_stops_by_itself(ds4: Ds4) -> None:
    ran = ds4("-n", "200", "-sys", "", "-p", "Say hello.")
    assert ran.code == 0 and ran.out and "<|im_end|>" not in ran.out
    assert "\x1b" not in ran.out + ran.err and "processing" not in ran.err  # a pipe gets neither colours nor progress


def test_the_budget_ends_the_answer(ds4: Ds4) -> None:
    one = ds4("--raw", "-n", "1", "-p", "The capital of France is")
    two = ds4("--raw", "-n", "2", "-p", "The capital of France is")
    assert one.out == " Paris" and two.out.startswith(" Paris") and len(two.out) > len(one.out)


def test_a_made_up_seed_can_be_repeated(ds4: Ds4) -> None:
    argv = ["--raw", "-n", "12", "--temp", "1.5", "-p", "Once upon a time"]
    first = ds4(*argv)
    seed = re.search(r"^ds4: seed (\d+)$", first.err, re.MULTILINE)
    assert seed is not None
    again = ds4(*argv, "--seed", seed[1])
    other = ds4(*argv, "--seed", str(int(seed[1]) + 1))
    assert again.out == first.out != other.out
    assert "ds4: seed" not in again.err


def test_a_stop_text_is_not_shown(ds4: Ds4) -> None:
    whole = ds4("--raw", "-n", "10", "-p", "one two three four five")
    stop = whole.out.split()[2]
    cut = ds4("--raw", "-n", "10", "-p", "one two three four five", "-r", stop)
    assert whole.out.startswith(cut.out) and stop not in cut.out


def test_bias_bans_and_forces(ds4: Ds4) -> None:
    plain = ds4("--raw", "-n", "1", "-p", "The capital of France is", "--dump-tokens")
    assert plain.code == 0
    paris = ds4("--raw", "-n", "1", "-p", " Paris", "--dump-tokens").out.split("\t")[1]
    assert not ds4("--raw", "-n", "1", "-p", "The capital of France is", "-l", f"{paris}-inf").out.startswith(" Paris")
    assert ds4("--raw", "-n", "3", "-p", "The capital of Spain is", "-l", f"{paris}+100").out == " Paris" * 3
    outside = ds4("--raw", "-n", "1", "-p", "x", "-l", "49152+1")
    assert outside.code == 2 and "0 to 49151" in outside.err
    assert ds4("--raw", "-n", "1", "-p", "x", "-l", "1=2").code == 2


def test_a_rendered_prompt_is_used_as_it_is(ds4: Ds4) -> None:
    shown = ds4("--show-prompt", "-p", "Say hello.").out.removesuffix("\n")
    assert shown.startswith("<|im_start|>system\nYou are a helpful assistant<|im_end|>\n") and "Say hello." in shown
    ids = ds4("--dump-tokens", "-p", "Say hello.").out
    again = ds4("--dump-tokens", "-p", shown)
    assert again.out == ids and "rendered chat already" in again.err
    quoting = ds4("--dump-tokens", "-p", "what does <|im_start|> mean?")
    assert '"<|im_start|>"' in quoting.out and quoting.out.count('"<|im_start|>"') == 3  # the template's, not the user's


def test_the_prefix_file_and_no_system_prompt(ds4: Ds4, tmp_path: Path) -> None:
    (tmp_path / "turns").write_text("USER: My name is Ada.\nASSISTANT: Hello Ada.\n")
    shown = ds4("--show-prompt", "-sys", "", "--prefix-file", str(tmp_path / "turns"), "-p", "Who am I?").out
    order = ["user\nMy name is Ada.<|im_end|>", "assistant\nHello Ada.<|im_end|>", "user\nWho am I?<|im_end|>"]
    at = [shown.index(part) for part in order]
    assert at == sorted(at) and shown.endswith("<|im_start|>assistant\n\n")
    assert "You are a helpful assistant<" not in shown  # the template may still put a text of its own there


def test_a_template_of_the_users_own(ds4: Ds4, tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text("{% for m in messages %}[[{{ m.role }}]]{{ m.content }}{% endfor %}")
    shown = ds4("--show-prompt", "--chat-template-file", str(tmp_path / "t.jinja"), "-sys", "S", "-p", "hi")
    assert shown.out == "[[system]]S[[user]]hi\n"
    broken = ds4("--show-prompt", "--chat-template", "{% for %}", "-p", "hi")
    assert broken.code == 1 and "template" in broken.err
    refusing = "{% for m in messages %}{{ raise_exception('no system') if m.role == 'system' else m.content }}{% endfor %}"
    dropped = ds4("--show-prompt", "--chat-template", refusing, "-p", "hi")
    assert dropped.out == "hi\n" and "takes no system prompt" in dropped.err
    asked = ds4("--show-prompt", "--chat-template", refusing, "-p", "hi", "-sys", "S")
    assert asked.code == 2 and "no system" in asked.err
    named = ds4("--show-prompt", "--chat-template", "chatml", "-p", "hi")
    assert named.code == 2 and "Jinja" in named.err


def test_prompts_from_a_file(ds4: Ds4, tmp_path: Path) -> None:
    (tmp_path / "p").write_text("The capital of France is")
    assert ds4("--raw", "-n", "1", "--prompt-file", str(tmp_path / "p")).out == " Paris"
    missing = ds4("--prompt-file", str(tmp_path / "gone"))
    assert missing.code == 1 and "gone" in missing.err
    assert ds4("--raw", "-e", "--dump-tokens", "-p", r"a\nb\q").out.count('"\\n"') == 1


def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers(ds4: Ds4) -> None:
    ran = ds4("--raw", "-c", "8", "-p", "a b c d e f g h i j k l m n o p")
    assert ran.code == 1 and ran.out == ""
    assert "the prompt has 16 tokens, but the context holds 8" in ran.err
    assert "loaded in" not in ran.err  # refused before the model is loaded


def test_a_full_context_ends_the_answer_and_is_said(ds4: Ds4) -> None:
    ran = ds4("--raw", "-c", "16", "--ignore-eos", "-p", "a b c d e f g h")
    assert ran.code == 0 and ran.out and "the context of 16 tokens is full" in ran.err


def test_the_context_is_capped_to_what_the_model_was_trained_for(ds4: Ds4) -> None:
    ran = ds4("-c", "9000", "--raw", "-n", "1", "-p", "x")
    assert ran.code == 0 and "9000 is more than the 8192 positions" in ran.err and "ctx=8192" in ran.err


def test_dump_logits(ds4: Ds4, tmp_path: Path) -> None:
    path = tmp_path / "logits.json"
    ran = ds4("--raw", "-p", "The capital of France is", "--dump-logits", str(path))
    assert ran.code == 0 and ran.out == ""
    found = json.loads(path.read_text())
    assert list(found) == [
        "source", "model", "backend", "quant_bits", "prompt_tokens", "ctx", "vocab", "argmax_token", "argmax_logit", "logits"
    ]  # fmt: skip
    assert found["source"] == "ds4" and found["quant_bits"] == 4 and found["prompt_tokens"] == 5 and found["ctx"] == 512
    assert found["vocab"] == len(found["logits"]) == 49152
    assert found["argmax_token"] == {"id": found["argmax_token"]["id"], "text": " Paris", "bytes": list(b" Paris")}
    assert found["logits"][found["argmax_token"]["id"]] == found["argmax_logit"] == max(found["logits"])


def test_dump_logprobs(ds4: Ds4, tmp_path: Path) -> None:
    logits, logprobs = tmp_path / "logits.json", tmp_path / "logprobs.json"
    ds4("--raw", "-p", "The capital of France is", "--dump-logits", str(logits))
    ds4("--raw", "-n", "4", "-p", "The capital of France is", "--dump-logprobs", str(logprobs), "--logprobs-top-k", "3")
    row, found = json.loads(logits.read_text())["logits"], json.loads(logprobs.read_text())
    assert (found["source"], found["prompt_tokens"], found["ctx"], found["top_k"]) == ("ds4", 5, 512, 3)
    assert [step["step"] for step in found["steps"]] == [0, 1, 2, 3]
    first = found["steps"][0]
    assert first["selected"]["text"] == " Paris" and len(first["top_logprobs"]) == 3
    total = math.log(math.fsum(math.exp(value) for value in row))
    best = sorted(range(len(row)), key=lambda i: -row[i])[:3]
    for listed, i in zip(first["top_logprobs"], best, strict=True):
        assert listed["token"]["id"] == i and listed["logit"] == row[i]
        assert listed["logprob"] == pytest.approx(row[i] - total, abs=1e-6)
    text = "".join(step["selected"]["text"] for step in found["steps"])
    assert text == ds4("--raw", "-n", "4", "-p", "The capital of France is").out


@pytest.mark.parametrize("mode", ["--dump-logits", "--dump-logprobs"])
def test_a_dump_that_cannot_be_written(ds4: Ds4, tmp_path: Path, mode: str) -> None:
    ran = ds4("--raw", "-n", "2", "-p", "x", mode, str(tmp_path / "gone" / "file"))
    assert ran.code == 1 and "nothing was left behind" in ran.err and "loaded in" not in ran.err
    if Path("/dev/full").exists():
        full = ds4("--raw", "-n", "2", "-p", "x", mode, "/dev/full")
        assert full.code == 1 and "No space left" in full.err
    assert list(tmp_path.iterdir()) == []


def test_decode_consistency(ds4: Ds4) -> None:
    ran = ds4("--raw", "-p", "The capital of France is", "--decode-consistency", "6")
    assert ran.code == 0 and re.fullmatch(r"decoded=6 decode_top=(\d+) prefill_top=\1 .* consistent\n", ran.out)


def test_perplexity(ds4: Ds4, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 8)
    ran = ds4("--perplexity-file", str(text))
    found = re.fullmatch(r"tokens=(\d+) scored=(\d+) nll=(\S+) avg_nll=(\S+) ppl=(\S+)\n", ran.out)
    assert ran.code == 0 and found is not None
    tokens, scored = int(found[1]), int(found[2])
    assert tokens == scored + 32
    assert float(found[4]) == pytest.approx(float(found[3]) / scored, abs=1e-5)
    assert float(found[5]) == pytest.approx(math.exp(float(found[4])), rel=1e-4)
    assert float(found[5]) < 3  # a text that repeats is easy
    assert " scored=5 " in ds4("--perplexity-file", str(text), "-n", "5").out
    text.write_text("short")
    short = ds4("--perplexity-file", str(text))
    assert short.code == 2 and "32" in short.err


def test_inspect(ds4: Ds4) -> None:
    ran = ds4("--inspect")
    assert ran.code == 0
    for fragment in (
        "llama",
        "134.5 M",
        "Q4_1",
        "Q8_0",
        "8,192 positions",
        "gpt2, smollm, 49,152 tokens",
        "ChatML",
        "n-gram",
        "no MTP block",
    ):
        assert fragment in ran.out
    # 30 layers x 3 heads x 64 wide x keys and values x 2 bytes x 512 positions
    assert re.search(r"keys and values +11\.8 MB at 512 positions \(22\.5 KiB each\)", ran.out)


def test_modes_that_need_a_prompt_say_so(ds4: Ds4) -> None:
    for mode in (["--dump-tokens"], ["--show-prompt"], ["--dump-logits", "x"], ["--decode-consistency", "3"]):
        ran = ds4(*mode)
        assert ran.code == 2 and f"{mode[0]} needs a prompt" in ran.err


def test_broken_weights_and_a_cut_file(capsys: pytest.CaptureFixture[str], smollm2_path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.gguf"
    shutil.copyfile(smollm2_path, copy)
    norm = open_gguf(copy).tensor("output_norm.weight")
    with copy.open("r+b") as file:
        file.seek(norm.start)
        file.write(struct.pack("<f", math.nan))
    assert main(["-m", str(copy), *SMALL, "--raw", "-n", "3", "-p", "The capital of France is"]) == 1
    out, err = capsys.readouterr()
    assert out == "" and "the logits for position 5 hold NaN" in err.splitlines()[-1]
    with copy.open("r+b") as file:
        file.truncate(copy.stat().st_size - 1000)
    assert main(["-m", str(copy), "--inspect"]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("ds4: ") and str(copy) in err and err.count("\n") == 1


# --- as a process ----------------------------------------------------------------------------------------------------------


def test_a_piped_prompt_and_only_text_on_standard_output(smollm2_path: Path) -> None:
    argv = [*DS4, "-m", str(smollm2_path), *SMALL, "-n", "1", "--raw"]
    ran = subprocess.run(argv, input=b"The capital of France is\n", capture_output=True)
    assert ran.returncode == 0 and ran.stdout == b" Paris"
    empty = subprocess.run(argv, input=b" \n", capture_output=True)
    assert empty.returncode == 2 and b"standard input holds no prompt" in empty.stderr and empty.stdout == b""


def test_ctrl_c_keeps_the_partial_answer_and_prints_the_speed(smollm2_path: Path) -> None:
    argv = [*DS4, "-m", str(smollm2_path), *SMALL, "--ignore-eos", "-n", "400", "--raw", "-p", "Once upon a time"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    first = process.stdout.read(10)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert len(first) == 10 and STATS.search(err.decode()) and b"Traceback" not in err
    assert len(out) < 1500  # 400 tokens are more


def test_a_reader_that_goes_away_ends_it_quietly(smollm2_path: Path) -> None:
    argv = [*DS4, "-m", str(smollm2_path), *SMALL, "--ignore-eos", "-n", "400", "--raw", "-p", "Once upon a time"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.read(5)
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(30) == 141 and b"Traceback" not in err and b"Broken" not in err


def test_a_full_disk_is_said_once(smollm2_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    argv = [*DS4, "-m", str(smollm2_path), *SMALL, "-n", "2", "--raw", "-p", "Once upon a time"]
    with open("/dev/full", "wb") as full:
        ran = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, text=True)
    assert ran.returncode == 1 and ran.stderr.endswith("ds4: cannot write the output: No space left on device\n")


def test_without_a_model_it_says_how_to_get_one(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(DS4, cwd=tmp_path, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert ran.returncode == 1 and ran.stdout == ""
    for fragment in ("ds4flash.gguf", "./download_model.sh demo", "GB of memory", "llama, qwen2, qwen3"):
        assert fragment in ran.stderr
    (tmp_path / "ds4flash.gguf").symlink_to("gguf/away.gguf")
    broken = subprocess.run(DS4, cwd=tmp_path, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert broken.returncode == 1 and "points to gguf/away.gguf, which is not there" in broken.stderr


def test_help_costs_little(tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ran = subprocess.run([*DS4, "--help"], capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert ran.returncode == 0 and ran.stdout.startswith("usage: ds4 ") and ran.stderr == ""
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert cpu < 0.3, f"--help took {cpu:.2f} s of processor time"
