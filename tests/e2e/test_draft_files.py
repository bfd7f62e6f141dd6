"""Files that draft for another model, through the command: recognised, named at the start, the same by any spelling, refused when
they do not fit; and the text is that of plain decoding."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_drafts import TinyDraft, tiny_dflash, tiny_eagle3
from tiny_models import tiny_gguf

from ds4py.cli.chat import main
from ds4py.gguf import GgmlType, NewTensor, open_gguf, write_gguf

RUN = "--raw -n 40 -c 200 -t 1 --temp 0 --ignore-eos"
TEXT = "the quick brown fox"
MADE: dict[str, Any] = {
    "draft-dspark": (tiny_dflash, {"markov_rank": 32, "confidence": True, "block_size": 7}),
    "draft-dflash": (tiny_dflash, {"block_size": 6}),
    "draft-eagle3": (tiny_eagle3, {}),
}
Files = dict[str, Path]
Ds4 = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("files")
    target = tiny_gguf("qwen3", folder / "target.gguf")
    found = {"target": target}
    for kind, (make, shape) in MADE.items():
        made: TinyDraft = make(folder / f"{kind}.gguf", target, GgmlType.Q8_0, **shape)
        found[kind] = made.path
    return found


@pytest.fixture
def ds4(capsys: pytest.CaptureFixture[str], files: Files) -> Ds4:
    def run(options: str) -> tuple[int, str, str]:
        code = main(["-m", str(files["target"]), *RUN.split(), "-p", TEXT, *options.split()])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def drafted(err: str) -> int:
    found = re.search(r"draft acceptance = .* accepted / *(\d+) generated", err)
    return int(found[1]) if found else 0


@pytest.mark.parametrize(("kind", "longest"), [("draft-dspark", 7), ("draft-dflash", 5), ("draft-eagle3", 3)])
def test_md_alone_recognises_the_file_and_says_so(kind: str, longest: int, ds4: Ds4, files: Files) -> None:
    name = files[kind].name
    plain, alone = ds4(""), ds4(f"-md {files[kind]} --spec-depth fixed")
    assert alone[:2] == plain[:2] and plain[0] == 0
    words = f"speculation: {kind} with {name} ({name} was taken for one; choose with --spec-type), up to {longest} tokens ahead"
    assert words in alone[2]
    assert drafted(alone[2]) > 20 * longest and f"statistics {kind}: " in alone[2]
    named = ds4(f"-md {files[kind]} --spec-type {kind} --spec-depth fixed")
    assert "was taken for one" not in named[2] and drafted(named[2]) == drafted(alone[2])


def test_dspark_flags_are_other_names(ds4: Ds4, files: Files) -> None:
    """`--dspark --mtp-model FILE` is `--spec-type draft-dspark -md FILE`; confidence and candidates arrive."""
    path = files["draft-dspark"]
    pairs = (
        (f"--dspark --mtp-model {path}", f"--spec-type draft-dspark -md {path}"),
        (f"--dspark-confidence 0.4 --mtp-model {path}", f"--spec-type draft-dspark -md {path} --spec-draft-conf-min 0.4"),
        (f"--mtp-model {path}", f"-md {path}"),
    )
    counts = []
    for a, b in pairs:
        mine, other = (ds4(f"{spelling} --spec-depth fixed --spec-draft-candidates 32") for spelling in (a, b))
        assert mine[:2] == other[:2] and drafted(mine[2]) == drafted(other[2]) > 0
        assert started(mine[2]) == started(other[2])
        counts.append(drafted(mine[2]))
    assert counts[1] < counts[0] == counts[2], "a threshold shortens drafts"


def started(err: str) -> str:
    return next(line for line in err.splitlines() if "speculation:" in line)


def test_strict_loads_and_does_not_draft(ds4: Ds4, files: Files) -> None:
    strict = ds4(f"--dspark-strict --mtp-model {files['draft-dspark']}")
    assert strict[:2] == ds4("")[:2] and drafted(strict[2]) == 0
    assert "speculation: off, because of --dspark-strict; draft-dspark with draft-dspark.gguf" in strict[2]


def test_longer_drafts_than_a_block_are_clamped_and_shorter_ones_obeyed(ds4: Ds4, files: Files) -> None:
    long = ds4(f"-md {files['draft-dspark']} --spec-draft-n-max 30")
    assert "(which drafts 7 tokens at most)" in started(long[2]) and "up to 7 tokens ahead" in started(long[2])
    short = ds4(f"-md {files['draft-dspark']} --spec-draft-n-max 2")
    assert "up to 2 tokens ahead" in started(short[2]) and "at most" not in started(short[2])
    eagle = ds4(f"-md {files['draft-eagle3']} --spec-draft-n-max 9 --spec-depth fixed")
    assert "up to 9 tokens ahead" in started(eagle[2]) and drafted(eagle[2]) > 200


def test_a_chain_with_n_grams(ds4: Ds4, files: Files) -> None:
    code, out, err = ds4(f"--spec-type draft-dflash,ngram-map-k --spec-ngram-map-k-size-n 2 -md {files['draft-dflash']}")
    assert (code, out) == ds4("")[:2] and "ngram-map-k 2/48, then draft-dflash with" in started(err)


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ("--spec-type draft-dflash -md {draft-dspark}", 1, "is made for draft-dspark, not for draft-dflash: choose --spec-type"),
        ("--dspark --mtp-model {draft-dflash}", 1, "is made for draft-dflash, not for draft-dspark"),
        ("--spec-type draft-simple -md {draft-eagle3}", 1, "is made for draft-eagle3, not for draft-simple"),
        ("--spec-type draft-dflash,draft-eagle3 -md {draft-eagle3}", 2, "draft-eagle3 and draft-dflash cannot share one draft"),
        ("--dspark-confidence 0.5 --spec-draft-conf-min 0.5 --mtp-model {draft-dspark}", 2, "are the same setting"),
        ("-md {draft-dspark} -td 2", 2, "runs on its 1 threads: leave --spec-draft-threads out"),
        ("-md {draft-dspark} --spec-draft-conf-min 0.5 --spec-type draft-dflash", 1, "is made for draft-dspark"),
        ("-md {draft-dspark} --prefill-chunk 4", 1, "blocks of 7 tokens are more than a forward of 4 rows"),
    ],
)
def test_what_cannot_be_is_one_sentence(options: str, code: int, words: str, ds4: Ds4, files: Files) -> None:
    named = {kind: str(path) for kind, path in files.items()}
    for kind, path in named.items():
        options = options.replace("{" + kind + "}", path)
    found = ds4(options)
    assert found[0] == code and found[1] == "" and words in found[2], found[2]


def changed(path: Path, out: Path, kv: dict[str, Any], drop: str = "", add: tuple[str, int] | None = None) -> Path:
    """A copy of a draft with other keys, without a tensor, or with one more."""
    g = open_gguf(path)
    tensors = [NewTensor(t.name, t.shape, t.type, t.data) for t in g.tensors.values() if not drop or drop not in t.name]
    if add:
        tensors.append(NewTensor(add[0], (add[1],), GgmlType.F32, bytes(4 * add[1])))  # type: ignore[arg-type]
    write_gguf(out, {**g.kv, **kv}, tensors)
    return out


@pytest.mark.parametrize(
    ("kind", "kv", "drop", "add", "options", "words"),
    [
        (
            "draft-dspark",
            {"dflash.target_layers": [1, 9]},
            "",
            None,
            "",
            "the input of layer 9, but target.gguf has 3 layers",
        ),
        ("draft-eagle3", {"eagle3.target_layers": [1, 2, 3]}, "", None, "", "asks for the input of layer 3"),
        ("draft-eagle3", {"eagle3.target_layers": [1, 2]}, "", None, "", "listens to 3 layers, this file to 2"),
        ("draft-eagle3", {"eagle3.target_hidden_size": 32}, "", None, "", "a hidden size of 32, but target.gguf has 64"),
        ("draft-dspark", {"dflash.hyper_connection.count": 4}, "", None, "", "the DeepSeek V4 form of the draft"),
        ("draft-dspark", {"general.architecture": "deepseek4-dspark"}, "", None, "", "drafts for DeepSeek V4 Flash, and"),
        ("draft-dspark", {"dflash.selector_top_k": 8}, "", None, "", "DFlash2's candidate selector"),
        ("draft-dspark", {"tokenizer.ggml.mask_token_id": 9999}, "", None, "", "the mask token 9999 has no row"),
        ("draft-dspark", {}, "conf_proj", None, "--spec-draft-conf-min 0.5", "has no confidence head, so --spec-draft-conf-min"),
        ("draft-dspark", {}, "markov_w2", None, "", "the tensor markov_w2.weight is missing"),
        ("draft-dspark", {}, "", ("blk.0.attn_sinks.weight", 4), "", "blk.0.attn_sinks.weight is not one that dflash uses"),
        ("draft-eagle3", {}, "", ("fc.scale", 1), "", "fc.scale is not one that eagle3 uses"),
    ],
)
def test_drafts_that_do_not_fit_are_refused_by_name(
    kind: str, kv: Any, drop: str, add: Any, options: str, words: str, ds4: Ds4, files: Files, tmp_path: Path
) -> None:
    path = changed(files[kind], tmp_path / "other.gguf", kv, drop, add)
    code, out, err = ds4(f"-md {path} {options}")
    assert code == 1 and out == "" and words in err.splitlines()[-1], err


def test_without_a_confidence_head_p_min_goes_by_probability(ds4: Ds4, files: Files, tmp_path: Path) -> None:
    path = changed(files["draft-dspark"], tmp_path / "headless.gguf", {"dflash.has_confidence_head": False}, "conf_proj")
    fixed = f"-md {path} --spec-depth fixed"
    plain, free, bound = (ds4(options) for options in ("", fixed, f"{fixed} --spec-draft-p-min 0.3"))
    assert plain[1] == free[1] == bound[1]
    assert 0 < drafted(bound[2]) < drafted(free[2])
    assert drafted(ds4(f"{fixed} --spec-draft-p-min 1.01")[2]) == 0
