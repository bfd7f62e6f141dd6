"""The counts of the loop and their spellings; the trace of every pass."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

import pytest
from scripted_drafters import EveryLength, Scripted, always_wrong
from toy_model import toy_engine

from ds4py.engine import FixedDepth, Session, SessionOptions, step
from ds4py.engine import statistics as st
from ds4py.engine.depth import SkipStreak
from ds4py.errors import ResourceError
from ds4py.protocols import Draft, Pass, SamplingParams, SpecStats

GREEDY = SamplingParams(0)


def spoken(trace: st.Trace | None = None, depth: int = 3, n: int = 60) -> Session:
    """A session whose drafts were right for 0, 1, 2, 3, 0, ... tokens."""
    engine = toy_engine()
    plain = engine.session(SessionOptions(GREEDY))
    plain.sync([1, 2, 3])
    for _ in plain.generate(n):
        pass
    drafter = Scripted(plain.tokens, EveryLength(depth))
    drafting = SessionOptions(GREEDY, drafter=drafter, depth=FixedDepth(depth), trace=trace.of(4) if trace else None)
    session = engine.session(drafting)
    session.sync([1, 2, 3])
    for _ in session.generate(n):
        pass
    return session


def test_counts_fit_together() -> None:
    stats = spoken().stats
    (source,) = stats.sources.values()
    assert stats.accepted + stats.passes == 60
    assert sum(rows * n for rows, n in stats.passes_of_rows.items()) == stats.rows == stats.passes + stats.drafted
    assert sum(source.accepted_at) == source.accepted == stats.accepted
    assert source.accepted_at == sorted(source.accepted_at, reverse=True) and source.accepted_at[0] == source.hits
    assert source.drafts == stats.drafts <= stats.draft_calls <= stats.passes
    assert 0 < source.draft_seconds <= stats.draft_seconds < 1 and stats.verify_seconds > 0


def test_rates() -> None:
    stats = spoken().stats
    shares = st.accepted_by_position(stats)
    assert shares == pytest.approx([0.75, 0.5, 0.25], abs=0.06)
    assert st.mean_len(stats) == pytest.approx(1 + sum(shares))
    assert st.tokens_per_pass(stats) == pytest.approx(60 / stats.passes)
    assert st.acceptance_rate(stats) == stats.accepted / stats.drafted


def test_nothing_is_divided_by_nothing() -> None:
    empty = SpecStats()
    assert list(st.llama_lines(empty, details=True)) == []
    assert st.telemetry(empty)["netTokensPerSecond"] == 0 and st.acceptance_rate(empty) == 0
    assert list(st.mtp_timing_lines(empty, "mtp")) and st.accepted_by_position(empty) == []
    assert st.timings(0, 0, 0.0, empty, 0.0)["predicted_n"] == 0


def test_llama_cpps_lines() -> None:
    stats = spoken().stats
    first, per_pos, per_type = st.llama_lines(stats, details=True)
    assert list(st.llama_lines(stats)) == [first]
    assert re.fullmatch(r"draft acceptance = 0\.\d{5} \( {2,3}\d+ accepted / {2,4}\d+ generated\), mean len = +\d\.\d\d", first)
    assert re.fullmatch(r"acc per pos = \(0\.\d{3}, 0\.\d{3}, 0\.\d{3}\)", per_pos)
    numbers = r"#gen drafts = \d+, #acc drafts = \d+, #gen tokens = \d+, #acc tokens = \d+, #mean acc len = \d\.\d\d"
    calls, rest = r"#calls\(b,g,a\) = 1 \d+ \d+", r"#acc rate/pos = \(.*\), dur\(b,g,a\) = \d+\.\d{3}, \d+\.\d{3}, \d+\.\d{3} ms"
    assert re.fullmatch(rf"statistics : {calls}, {numbers}, {rest}", per_type)


def test_every_type_of_a_chain_has_its_calls() -> None:
    """A later type is asked where those before it were silent; one that never drafted is listed too. Seconds are measured."""
    stats = SpecStats(begins=2, begin_seconds=0.0015)
    for source, n, accepted in (("ngram-mod", 3, 2), ("ngram-mod", 2, 0), ("draft-simple", 3, 3), ("", 0, 0)):
        stats.count(Pass(0, 1, 4, Draft([1] * n, source=source), accepted + 1, 0.25, 1.0, n + 1, accept_seconds=0.002))
    lines = list(st.llama_lines(stats, True, ("ngram-simple", "ngram-mod", "draft-simple")))[2:]
    assert lines == [
        "statistics ngram-simple: #calls(b,g,a) = 2 4 0, #gen drafts = 0, #acc drafts = 0, #gen tokens = 0, #acc tokens = 0, "
        "dur(b,g,a) = 1.500, 0.000, 0.000 ms",
        "statistics ngram-mod: #calls(b,g,a) = 2 4 2, #gen drafts = 2, #acc drafts = 1, #gen tokens = 5, #acc tokens = 2, "
        "#mean acc len = 2.00, #acc rate/pos = (0.500, 0.500), dur(b,g,a) = 1.500, 500.000, 4.000 ms",
        "statistics draft-simple: #calls(b,g,a) = 2 2 1, #gen drafts = 1, #acc drafts = 1, #gen tokens = 3, #acc tokens = 3, "
        "#mean acc len = 4.00, #acc rate/pos = (1.000, 1.000, 1.000), dur(b,g,a) = 1.500, 250.000, 2.000 ms",
    ]
    one = spoken().stats
    (source,) = one.sources.values()
    assert one.begins == 1 and 0 < one.begin_seconds < 1 and 0 < source.accept_seconds < 1


def test_a_golden_line() -> None:
    stats = SpecStats(passes=89, drafted=297, accepted=171)
    line = next(st.llama_lines(stats))
    assert line.startswith("draft acceptance = 0.57576 (  171 accepted /   297 generated), mean len =")


def test_timings_have_draft_fields_only_after_drafts() -> None:
    drafted = st.timings(5, 10, 0.5, spoken().stats, 2.0)
    assert drafted["prompt_per_second"] == 20 and drafted["predicted_per_second"] == 30 and drafted["cache_n"] == 5
    assert drafted["draft_n"] > drafted["draft_n_accepted"] > 0
    assert "draft_n" not in st.timings(5, 10, 0.5, SpecStats(passes=4), 2.0)


def test_telemetry_and_mtp_timing() -> None:
    stats = spoken().stats
    told = st.telemetry(stats)
    assert told["speculativeDraftTokens"] == stats.drafted and told["speculativeAcceptedTokens"] == stats.accepted
    assert told["netTokensPerSecond"] == pytest.approx(60 / (stats.draft_seconds + stats.verify_seconds))
    lines = list(st.mtp_timing_lines(stats, "Qwen3.8 mtp"))
    percent = 100 * stats.accepted / stats.drafted
    assert lines[0] == f"Qwen3.8 mtp: {stats.drafts} verify cycles, {stats.accepted} drafts accepted ({percent:.1f}%)"
    assert sum(stats.seconds_of_rows.values()) == pytest.approx(stats.verify_seconds)
    costs = re.fullmatch(r"Qwen3.8 mtp: ms of a verify by rows \(passes\): (.*); a drafted token \d\.\d{3} ms", lines[2])
    assert costs, lines
    counts = {int(n): int(passes) for n, passes in re.findall(r"(\d+) \d+\.\d\d \((\d+)\)", costs[1])}
    assert counts == stats.passes_of_rows and len(list(st.mtp_timing_lines(SpecStats(), "x"))) == 2


def test_sessions_of_one_forward_share_its_seconds_and_have_their_own_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = toy_engine()
    monkeypatch.setattr(sys.modules["ds4py.engine.generate"], "perf_counter", lambda: 10.0 * engine.model.n_forwards)  # type: ignore[attr-defined]
    sessions = []
    for depth in (0, 2):
        drafter = Scripted(list(range(40)), always_wrong)
        sessions.append(engine.session(SessionOptions(GREEDY, drafter=drafter, depth=FixedDepth(depth))))
        sessions[-1].sync([1, 2, 3])
        sessions[-1].begin(10)
    for _ in range(3):
        step(sessions)
    assert [session.stats.verify_seconds for session in sessions] == [15.0, 15.0]
    assert sessions[0].stats.draft_calls == 0 and sessions[1].stats.draft_calls == 3
    assert sessions[0].stats.rows == 3 and sessions[1].stats.rows == 9


# --- the trace ---------------------------------------------------------------------------------------------------------------


def test_a_trace_has_two_lines_for_every_verified_draft_and_the_fields_in_order() -> None:
    out = io.StringIO()
    session = spoken(st.Trace(out))
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    drafts = [line for line in lines if line["evt"] == "mtp_draft"]
    accepts = [line for line in lines if line["evt"] == "mtp_accept"]
    assert len(drafts) == session.stats.passes and len(accepts) == session.stats.drafts
    order = ["evt", "iter", "path", "seq_id", "id_last", "h_idx", "attn_pos", "n_steps", "h_l2", "drafts"]
    assert all(list(line) == order and line["seq_id"] == 4 for line in drafts)
    assert all(list(line) == ["evt", "iter", "n_accepted", "n_drafted_prev"] for line in accepts)
    assert [line["iter"] for line in accepts] == list(range(len(accepts)))
    assert sum(line["n_accepted"] for line in accepts) == session.stats.accepted
    assert [line["id_last"] for line in drafts] == [session.tokens[line["attn_pos"]] for line in drafts]
    assert '"h_l2":0.0000,' in out.getvalue()
    for draft in drafts:
        done = next((line for line in accepts if line["iter"] == draft["iter"]), None)
        if done and draft["drafts"]:
            at = draft["attn_pos"] + 1
            n = done["n_accepted"]
            assert session.tokens[at : at + n] == draft["drafts"][:n] and done["n_drafted_prev"] == len(draft["drafts"])


def test_passes_that_no_draft_was_asked_for_say_why() -> None:
    """Two misses, one draft left out, and the last token of a budget is never drafted."""
    out = io.StringIO()
    engine = toy_engine()
    wrong = Scripted(list(range(40)), always_wrong)
    policy = SkipStreak(FixedDepth(2), 2)
    session = engine.session(SessionOptions(GREEDY, drafter=wrong, depth=policy, trace=st.Trace(out).of(0)))
    session.sync([1, 2, 3])
    for _ in session.generate(8):
        pass
    drafts = [json.loads(line) for line in out.getvalue().splitlines() if "mtp_draft" in line]
    paths = [line["path"] for line in drafts]
    assert paths == ["sync", "sync", "skip-streak", "sync", "sync", "skip-streak", "sync", "skip-nsteps"]
    assert [line["attn_pos"] for line in drafts] == [2, 3, 3, 5, 6, 6, 8, 8], "a pass without a draft keeps the last one's place"
    assert all(line["n_steps"] == 0 and line["drafts"] == [] for line in drafts if line["path"] != "sync")
    assert [line["iter"] for line in drafts] == [0, 1, 2, 2, 3, 4, 4, 5], "iter moves on with an accept only"
    out = io.StringIO()
    session = engine.session(SessionOptions(GREEDY, drafter=wrong, depth=FixedDepth(0), trace=st.Trace(out).of(0)))
    wrong.truncate(0)
    session.sync([1, 2])
    next(session.generate(1))
    assert json.loads(out.getvalue())["attn_pos"] == -1


def test_where_a_trace_goes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert st.Trace.open("") is None and st.Trace.open("0") is None
    for _ in range(2):
        with st.Trace.open(str(tmp_path / "t.ndjson")) or pytest.fail("a file is a trace") as trace:
            spoken(trace, n=9)
    lines = (tmp_path / "t.ndjson").read_text().splitlines()
    assert len(lines) % 2 == 0 and lines[: len(lines) // 2] == lines[len(lines) // 2 :], "lines are added"
    spoken(st.Trace.open("1"), n=9)
    assert capsys.readouterr().err.splitlines() == lines[: len(lines) // 2]
    with pytest.raises(ResourceError, match="cannot write the speculation trace"):
        st.Trace.open(str(tmp_path / "no" / "t"))
