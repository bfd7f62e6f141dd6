"""CPU masks and priority: obeyed where the system allows it, one sentence where not, and nothing is left behind."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from ds4py.cli import placing
from ds4py.cli.chat import main
from ds4py.cli.parsing import parse
from ds4py.drafters import placement
from ds4py.drafters.draft_context import DraftContext
from ds4py.drafters.placement import running_on, spread
from ds4py.errors import Ds4Error, ResourceError, UnsupportedError, UsageError

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no CPU masks")
HAVE = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
FIRST = HAVE[0]
RUN = "--raw -n 8 -c 128 -t 1 --temp 0 -p Hello"


@pytest.mark.parametrize(
    ("argv", "cpus"),
    [
        (["-C", "0x3"], {0, 1}),
        (["--cpu-mask", "f0"], {4, 5, 6, 7}),
        (["-Cr", "2-4"], {2, 3, 4}),
        (["-C", "1", "--cpu-range", "8-8"], {0, 8}),
        ([], None),
    ],
)
def test_masks_and_ranges(argv: list[str], cpus: set[int] | None) -> None:
    assert placing.cpus_of(parse("ds4", argv), "--cpu-mask", "--cpu-range") == cpus


@pytest.mark.parametrize("argv", [["-C", text] for text in ("0", "zz", "", "-1")] + [["-Cr", text] for text in ("3", "3-1")])
def test_what_is_no_mask_is_one_sentence(argv: list[str]) -> None:
    with pytest.raises(UsageError, match="--cpu-(mask|range) takes") as caught:
        placing.cpus_of(parse("ds4", argv), "--cpu-mask", "--cpu-range")
    assert "\n" not in str(caught.value)


def test_threads_that_are_started_inside_inherit_the_mask() -> None:
    before, seen = os.sched_getaffinity(0), set[int]()
    with running_on(frozenset({FIRST})):
        assert os.sched_getaffinity(0) == {FIRST}
        thread = threading.Thread(target=lambda: seen.update(os.sched_getaffinity(0)))
        thread.start()
        thread.join()
    assert seen == {FIRST} and os.sched_getaffinity(0) == before


def test_a_strict_placement_gives_each_thread_one_processor() -> None:
    done = threading.Event()
    threads = [threading.Thread(target=done.wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    spread(frozenset(HAVE), threads)
    found = [sorted(os.sched_getaffinity(thread.native_id or 0)) for thread in threads]
    done.set()
    assert found == [[HAVE[i % len(HAVE)]] for i in (1, 2, 3)] and sorted(os.sched_getaffinity(0)) == HAVE


def test_what_the_system_refuses_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.sched_getaffinity(0)
    for cpus in ({511}, {FIRST, 511}):  # Linux takes the second silently, without the processor that is not there
        with pytest.raises(ResourceError, match="no processor 511: it may run on"), running_on(frozenset(cpus)):
            pass
        assert os.sched_getaffinity(0) == before

    def refused(*_: object) -> None:
        raise PermissionError("no")

    monkeypatch.setattr(os, "setpriority", refused)
    with pytest.raises(ResourceError, match="does not let .* have --prio 2"), placing.placed(parse("ds4", ["--prio", "2"])):
        pass
    monkeypatch.delattr(placement.os, "sched_setaffinity")
    with pytest.raises(UnsupportedError, match="does not let a program choose its processors"), running_on(frozenset({0})):
        pass


def test_priority_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(os, "setpriority", lambda *args: asked.append(args[2]))
    for prio in ("-1", "0", "1", "2", "3"):
        with placing.placed(parse("ds4", ["--prio", prio])):
            pass
    assert asked == [5, -5, -10, -20]


def test_a_run_under_a_mask_says_the_same_and_leaves_no_trace(
    smollm2_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, feed, seen = os.sched_getaffinity(0), DraftContext.feed, set[tuple[int, ...]]()
    plain = (main(["-m", str(smollm2_path), *RUN.split()]), capsys.readouterr().out)
    forward = placement.running_on

    def watched(cpus: frozenset[int] | None) -> object:
        seen.add(tuple(sorted(cpus or ())))
        return forward(cpus)

    monkeypatch.setattr("ds4py.drafters.draft_context.running_on", watched)
    mask = hex(1 << FIRST)
    more = f"-C {mask} --cpu-strict 1 -md {smollm2_path} -Cd {mask} -td 1 --spec-depth fixed"
    masked = (main(["-m", str(smollm2_path), *RUN.split(), *more.split()]), capsys.readouterr().out)
    assert masked == plain and plain[0] == 0 and os.sched_getaffinity(0) == before
    assert seen == {(FIRST,)} and DraftContext.feed is feed
    assert main(["-m", str(smollm2_path), *RUN.split(), "-Cr", "511-511"]) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("ds4: the system gives this program no processor 511")
    assert main(["-m", str(smollm2_path), *RUN.split(), "-C", "x"]) == 2
    assert issubclass(ResourceError, Ds4Error)


def test_every_form_has_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("-Cb", "-Crb", "--cpu-strict-batch", "--prio-batch"):
        assert main([name, "1"]) == 2 and "prompts and answers share their threads" in capsys.readouterr().err
    for words in (["--poll", "50"], ["--poll-batch", "0"], ["--cpu-strict", "1"], ["--prio-draft", "0"]):
        parse("ds4", words)
