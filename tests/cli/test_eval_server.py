"""ds4-eval --spec --url against a server of our own on the loopback: both sides are asked in turns, figures are the server's
where it gives some, failures are told, nothing is sent where it does not belong."""

from __future__ import annotations

import csv
import json
import socket
from pathlib import Path
from typing import Any

import pytest
from loopback_llm import LoopbackServer

from ds4py.cli.eval.client import RequestFailed, Server
from ds4py.cli.eval.command import main
from ds4py.errors import UsageError

N_GEN = "24"


@pytest.fixture
def prompts(tmp_path: Path) -> list[str]:
    rows = [
        {"id": "a", "category": "chat", "turns": ["Tell me something.", "And then?"]},
        {"id": "b", "category": "code", "turns": ["Write a loop."]},
    ]
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return ["--spec", "--prompts", str(path), "--gen-tokens", N_GEN]


def found(path: Path) -> Any:
    return json.loads(path.read_text())


def test_two_servers(prompts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {name: tmp_path / f"out.{name}" for name in ("csv", "json", "plot")}
    with LoopbackServer(speed=150, accept=2) as fast, LoopbackServer() as plain:
        asked = ["--url", fast.url, "--baseline-url", f"{plain.url}/v1", "--rounds", "2"]
        code = main([*prompts, *asked, *(word for name, path in files.items() for word in (f"--{name}", str(path)))])
        # 2 prompts x 2 temperatures x 2 rounds, "a" has two turns; the baseline is asked twice; and one warm-up of "a"
        assert (len(fast.seen), len(plain.seen)) == (2 + 12, 2 + 24)
    told = capsys.readouterr().out
    assert code == 0, told
    assert "Text equal to the baseline's at temperature 0: 4 of 4 answers." in told
    assert "At temperature 0 a pass costs 2.00 plain tokens" in told and "3.00 to be 1.5 x as fast, and committed 3.00" in told
    rows = {(row["category"], row["temperature"]): row for row in csv.DictReader(files["csv"].read_text().splitlines())}
    assert set(rows) == {(category, t) for category in ("chat", "code", "all") for t in ("0", "1")}
    every = rows["all", "0"]
    assert (every["ratio"], every["ratio_min"], every["ratio_max"]) == ("1.500", "1.500", "1.500")
    assert (every["rounds"], every["tokens_per_pass"], every["acceptance"]) == ("4", "3.000", "0.667")
    summary = found(files["json"])["summary"]
    assert all(cell["accepted_by_position"] == [1.0, 1.0] for cell in summary), "by /metrics"
    results = found(files["json"])["results"]
    assert {one["side"] for one in results} == {"speculative", "baseline"} and all(one["ok"] for one in results)
    chat = next(one for one in results if one["id"] == "a" and one["side"] == "speculative")
    assert (chat["turns"], chat["completion_tokens"], chat["predicted_per_second"]) == (2, 48, pytest.approx(150))
    assert (chat["draft_n"], chat["draft_n_accepted"], chat["finish_reason"]) == (48, 32, "length")
    assert files["plot"].read_bytes().startswith(b"\x89PNG")


def test_one_server_asked_not_to_draft(prompts: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with LoopbackServer(speed=80, accept=1) as server:
        extra = ["--baseline-inputs", '{"speculative": false}', "--extra-inputs", '{"min_p": 0.05}', "--temps", "0"]
        assert main([*prompts, "--url", server.url.removeprefix("http://"), *extra, "--limit", "1"]) == 0
        assert all(body["min_p"] == 0.05 and body["model"] == "loopback" and body["max_tokens"] == 24 for body in server.seen)
        assert sum(body.get("speculative") is False for body in server.seen) == 2 + 2 * 3
    told = capsys.readouterr().out
    assert "| 0.80  |" in told and "a pass costs 2.50 plain tokens" in told


def test_an_earlier_run_as_the_baseline(prompts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = tmp_path / "before.json"
    with LoopbackServer() as plain:
        assert main([*prompts, "--url", plain.url, "--json", str(before)]) == 0
    told = capsys.readouterr().out
    assert "No baseline: give --baseline-url" in told and "The server told of no drafted tokens." in told
    with LoopbackServer(speed=300, accept=2) as fast:
        assert main([*prompts, "--url", fast.url, "--baseline", str(before)]) == 0
    assert "3.00-3.00" in capsys.readouterr().out
    (tmp_path / "no.json").write_text('{"results": [3]}')
    assert main([*prompts, "--url", "http://127.0.0.1:9", "--baseline", str(tmp_path / "no.json")]) == 1


def test_a_server_that_tells_nothing_is_measured_from_outside(prompts: list[str], tmp_path: Path) -> None:
    out = tmp_path / "x.json"
    with LoopbackServer(told=False, accept=2) as server:
        assert main([*prompts, "--url", server.url, "--json", str(out), "--temps", "0"]) == 0
    for one in found(out)["results"]:
        assert one["completion_tokens"] in (24, 48) and one["predicted_ms"] > 0 and one["prompt_ms"] > 0
        assert one["draft_n"] == 0 and one["latency_s"] < 60


def test_loops_are_left_out(prompts: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    faults = {"loop.": "loop"}
    with LoopbackServer(speed=200, accept=2, faults=faults) as fast, LoopbackServer(faults=faults) as plain:
        argv = [*prompts[:-1], "64", "--url", fast.url, "--baseline-url", plain.url, "--temps", "0"]
        assert main(argv) == 0
    told = capsys.readouterr().out
    assert "Left out: b at temperature 0, its end repeats every 1 tokens." in told
    assert [line.split("|")[4].strip() for line in told.splitlines() if line.startswith("| code")] == ["0"]


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("status", "status 503: the model is still being loaded"),
        ("cut", "the stream ended before it began"),
        ("nonsense", "the stream holds what is no JSON: '{broken'"),
        ("error", "out of memory"),
    ],
)
def test_failed_requests_are_told_and_the_rest_goes_on(
    fault: str, sentence: str, prompts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with LoopbackServer(faults={"loop.": fault}) as server:
        assert main([*prompts, "--url", server.url, "--temps", "0", "--json", str(tmp_path / "x.json")]) == 1
    told = capsys.readouterr().out
    assert f"Failed: b at temperature 0 (speculative): {sentence}" in told.replace('"', "'") and "| chat" in told
    assert (found(tmp_path / "x.json")["completed_samples"], found(tmp_path / "x.json")["failed_samples"]) == (1, 1)


def test_nobody_there(prompts: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    assert main([*prompts, "--url", url]) == 1
    assert f"no server answers at {url}" in capsys.readouterr().err


def test_the_key_goes_where_it_was_given_for(prompts: list[str]) -> None:
    with LoopbackServer() as server:
        assert main([*prompts, "--url", server.url, "--temps", "0", "--limit", "1"]) == 0
        assert not any("Authorization" in headers for headers in server.headers)
        server.headers.clear()
        assert main([*prompts, "--url", server.url, "--temps", "0", "--limit", "1", "--api-key", "s3cret"]) == 0
        assert {headers["Authorization"] for headers in server.headers} == {"Bearer s3cret"}


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://x:0", "http://x:99999", "://"])
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(UsageError, match="no address|port that is none"):
        Server(url)


def test_a_server_that_stops_answering_is_not_waited_for(prompts: list[str]) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(4)
        server = Server(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=0.2)
        with pytest.raises(RequestFailed, match="timed out"):
            server.chat({"messages": []})


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--extra-inputs", "3"], "--extra-inputs takes a JSON object"),
        (["--baseline-url", "x", "--baseline", "y"], "--baseline-url and --baseline"),
        (["-md", "x.gguf"], "--url and --spec-draft-model"),
    ],
)
def test_options_that_do_not_fit(argv: list[str], sentence: str, prompts: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with LoopbackServer() as server:
        assert main([*prompts, "--url", server.url, *argv]) == 2
    assert sentence in capsys.readouterr().err
