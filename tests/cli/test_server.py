"""ds4-server as a process: it says where it listens, traces, leaves orderly, and refuses what cannot be."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from server_process import ask, command, started

SLOW = {"pieces": ["tick ", "tock ", "tack "], "endless": True, "delay": 0.02, "when": "#slow#"}
SCRIPT = {"replies": [SLOW, {"pieces": ["Hel", "lo"]}]}


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "replies.json"
    path.write_text(json.dumps(SCRIPT))
    return str(path)


def test_a_scripted_server_answers_traces_and_leaves(script: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace.ndjson"
    with started("--scripted", script, "--trace", str(trace), "--temp", "0", "--nothink") as (process, url, said):
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "wild": 1}
        assert ask(f"{url}/v1/chat/completions", body)["choices"][0]["message"]["content"] == "Hello"
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as made:
            slow = json.dumps({"messages": [{"role": "user", "content": "#slow#"}], "stream": True, "max_tokens": 9999}).encode()
            made.sendall(b"POST /v1/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n" % len(slow) + slow)
            while b"tick" not in made.recv(65536):
                pass
            process.send_signal(signal.SIGINT)
            rest = b""
            with contextlib.suppress(ConnectionResetError):
                while part := made.recv(65536):
                    rest += part
        assert b"event: error" in rest and b"shutting down" in rest
        assert process.wait(20) == 0
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    first, reply, end = lines[:3]
    assert first["prompt"] == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    assert first["ignored"] == ["wild"] and first["params"]["temperature"] == 0 and first["n_prompt"] > 5
    assert (reply["text"], end["outcome"], end["usage"]["generated"]) == ("Hello", "stop", 3)
    assert lines[-1]["evt"] == "end" and lines[-1]["outcome"] == "cancelled"
    assert trace.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--port", "70000"], 2, "--port must be a whole number from 0 to 65535"),
        (["--prompt", "x"], 2, "unknown option"),
        (["--kv-disk-dir", "x"], 2, "disk store"),
        (["--batched-session", "4"], 2, "one after another"),
        (["--mixed-prefill-quantum", "128"], 2, "one after another"),
        (["--kv-cache-cold-max-tokens", "5"], 2, "disk store"),
        (["--dir-steering-policy", "off"], 2, "steering vectors"),
        (["--scripted", "nowhere.json"], 1, "nowhere.json: cannot read the script"),
        (["--scripted", __file__], 1, "not valid JSON"),
        (["-m", "nowhere.gguf"], 1, "nowhere.gguf"),
        (["--host", "203.0.113.1", "--port", "0"], 1, "cannot listen on 203.0.113.1:0"),
    ],
)
def test_what_cannot_be_is_said_in_one_sentence(arguments: list[str], code: int, words: str) -> None:
    where = [] if "--port" in arguments else ["--port", "0"]
    done = subprocess.run(command(*where, *arguments), capture_output=True, text=True, timeout=30)
    assert done.returncode == code and words in done.stderr and "Traceback" not in done.stderr


def test_keys_may_come_from_a_file_and_thinking_has_a_limit(tmp_path: Path) -> None:
    think = ["<think>", *[f"w{i} " for i in range(9)], "</think>"]
    script, keys = tmp_path / "replies.json", tmp_path / "keys"
    script.write_text(json.dumps({"replies": [{"pieces": [*think, "so"], "endless": True}]}))
    keys.write_text("# for the laptop\n\nsecret one\nsecond\n")
    options = ("--api-key-file", str(keys), "--reasoning-budget", "2", "--disable-exact-dsml-tool-replay", "--no-webui")
    body = json.dumps({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 30}).encode()
    with started("--scripted", str(script), "--temp", "0", *options) as (_, url, _):
        for key, status in (("second", 200), ("secret one", 200), ("# for the laptop", 401), ("", 401)):
            request = urllib.request.Request(f"{url}/v1/chat/completions", body, {"x-api-key": key})
            try:
                with urllib.request.urlopen(request, timeout=20) as answer:
                    message = json.load(answer)["choices"][0]["message"]
                    assert status == 200 and message["reasoning_content"].split() == ["w0", "w1"] and message["content"]
            except urllib.error.HTTPError as error:
                assert error.code == status
    keys.write_text("# none\n")
    done = subprocess.run(command("--scripted", str(script), *options), capture_output=True, text=True, timeout=30)
    assert done.returncode == 2 and "there is no key in this file" in done.stderr


def test_a_port_that_is_taken(script: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = subprocess.run(command("--scripted", script, "--port", port), capture_output=True, text=True, timeout=30)
    assert done.returncode == 1 and f"cannot listen on 127.0.0.1:{port}: Address already in use" in done.stderr


def test_a_scripted_model_can_be_drafted_for(script: str) -> None:
    sizes = ("--spec-ngram-simple-size-n", "2", "--spec-ngram-simple-size-m", "4")
    with started("--scripted", script, "--spec-type", "ngram-simple", *sizes, "--spec-depth", "fixed") as (_, url, said):
        assert any("speculation: ngram-simple 2/4" in line and "fixed depth" in line for line in said)
        body = {"messages": [{"role": "user", "content": "#slow#"}], "max_tokens": 60, "temperature": 0}
        answer = ask(f"{url}/v1/chat/completions", body)
        assert answer["timings"]["draft_n_accepted"] > 20 and answer["usage"]["completion_tokens"] == 60
        with urllib.request.urlopen(f"{url}/metrics", timeout=10) as metrics:
            assert "ngram-simple 2/4" in metrics.read().decode()
