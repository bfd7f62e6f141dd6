"""Ids after a conversion are the ids of the folder's own tokenizer; padding, tied heads and unknown pre-tokenizers (FC-58)."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from hf_folders import SPACE, TEMPLATE, byte_level, edit_json, save_folder, save_tokenizer, spm_as_bpe, spm_model, spm_pieces
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer

from ds4py.convert import Options, make_plan, write_plan
from ds4py.convert.tokenizer_files import read_vocabulary
from ds4py.engine import Engine, EngineOptions, SessionOptions
from ds4py.errors import FormatError, UnsupportedError, UsageError
from ds4py.gguf import GgufFile, open_gguf
from ds4py.protocols import SamplingParams
from ds4py.tokenizer import TokenType, load_tokenizer

LINES = (
    "Alice was beginning to get very tired",
    "of sitting by her sister on the bank,",
    "",
    "  two spaces, then\ttabs\t\tand trailing   ",
    "'Curiouser and curiouser!' cried Alice; she'd WE'LL it's I'VE",
    "1 12 123 1234 12345 007 3.14159 1,000,000",
    "x = [i**2 for i in range(10)]  # squares",
    "def f(a, b=None):\n    return a or b",
    "naïve café, über straße, señor",
    "Привет, мир! Как дела?",
    "你好，世界。今天天气很好",
    "こんにちは世界カタカナ",
    "안녕하세요 세계",
    "مرحبا بالعالم",
    "שלום עולם",
    "नमस्ते दुनिया",
    "emoji: 😀👩‍👩‍👧‍👦🏳️‍🌈",
    "math: ∑∫√∞ ≠ ≤ ½ ² ₃",
    "line\r\nbreaks\n\n\nand\r\rmore",
    "<b>bold</b> a line<br>break <i>x</i>",
    "http://example.com/a?b=c&d=e#f",
    "C:\\path\\to\\file.txt",
    "snake_case camelCase PascalCase kebab-case",
    "\u00a0no-break\u2003em space\u200bzero",
    "............ !!!??? ---===+++",
    "end of line 1234567890",
    "a" * 50,
    "MiXeD CaSe TeXt",
    "quote “curly” ‘single’ «french»",
    "The Rabbit-Hole went straight on like a tunnel",
)


def converted(folder: Path, **options: Any) -> GgufFile:
    path = folder.parent / "model.gguf"
    write_plan(make_plan(folder, Options(**options)), path)
    return open_gguf(path)


def with_tokenizer(folder: Path, tokenizer: Tokenizer | None = None, **properties: Any) -> Path:
    """A folder whose model is as small as can be and whose tokenizer is the given one."""
    size = 320 if tokenizer is None else max(tokenizer.get_vocab_size(), 320)
    save_folder("llama", folder, num_hidden_layers=1, vocab_size=size)
    save_tokenizer(folder, tokenizer, **properties)
    return folder


def test_the_text_has_thirty_lines() -> None:
    assert len(LINES) == 30


@pytest.mark.parametrize(("cut", "pre"), [("qwen2", "qwen2"), ("llama3", "llama-bpe"), ("smollm", "smollm"), ("gpt-2", "gpt-2")])
def test_byte_level_ids(cut: str, pre: str, tmp_path: Path) -> None:
    theirs = byte_level(cut, 600)
    g = converted(with_tokenizer(tmp_path / "tiny", theirs))
    assert g.kv["tokenizer.ggml.pre"] == pre
    ours = load_tokenizer(g)
    for line in (*LINES, "\n".join(LINES)):
        ids = theirs.encode(line, add_special_tokens=False).ids
        assert ours.encode(line) == ids, line
        assert ours.decode(ids) == line
    assert ours.encode("<|im_start|>x", special=True)[0] == theirs.token_to_id("<|im_start|>")
    assert ours.add_bos == (cut == "llama3")
    assert theirs.token_to_id("<|im_end|>") == ours.eos_id


@pytest.mark.skipif(importlib.util.find_spec("llama_cpp") is None, reason="llama-cpp-python is not installed")
@pytest.mark.parametrize("cut", ["qwen2", "llama3", "smollm"])
def test_llama_cpp_gets_the_same_ids(cut: str, tmp_path: Path) -> None:
    from llama_cpp import Llama

    theirs = byte_level(cut, 600)
    g = converted(with_tokenizer(tmp_path / "tiny", theirs))
    peer = Llama(str(g.path), vocab_only=True, verbose=False)
    for line in LINES:
        ids = theirs.encode(line, add_special_tokens=False).ids
        assert peer.tokenize(line.encode(), add_bos=False, special=False) == ids, line


def test_unknown_pre_tokenizer_stops_with_its_hash_and_can_be_named(tmp_path: Path) -> None:
    folder = with_tokenizer(tmp_path / "tiny", byte_level("changed"))
    with pytest.raises(UnsupportedError, match=r"pre-tokenizer [0-9a-f]{16} is not known.*--pre-tokenizer NAME"):
        make_plan(folder, Options())
    assert make_plan(folder, Options(pre_tokenizer="qwen2")).kv["tokenizer.ggml.pre"] == "qwen2"
    with pytest.raises(UsageError, match="'qwen9' is not known; known are"):
        make_plan(folder, Options(pre_tokenizer="qwen9"))


def test_one_changed_character_of_the_expression_is_unknown(tmp_path: Path) -> None:
    folder = with_tokenizer(tmp_path / "tiny")

    def change(table: dict[str, Any]) -> None:
        split = table["pre_tokenizer"]["pretokenizers"][0]["pattern"]
        split["Regex"] = split["Regex"].replace(r"\p{N}|", r"\p{N}+|")

    edit_json(folder / "tokenizer.json", change)
    with pytest.raises(UnsupportedError, match="is not known"):
        make_plan(folder, Options())


@pytest.mark.parametrize("change", ["Lowercase", "NFKC"])
def test_a_normaliser_that_changes_text_is_unknown(change: str, tmp_path: Path) -> None:
    folder = with_tokenizer(tmp_path / "tiny")
    edit_json(folder / "tokenizer.json", lambda table: table.update(normalizer={"type": change}))
    with pytest.raises(UnsupportedError, match="is not known"):
        make_plan(folder, Options())


# --- padding ---------------------------------------------------------------------------------------------------------------


def test_padding_rows_are_typed_unused_and_never_sampled(tmp_path: Path) -> None:
    """300 tokens and 340 rows; the extra rows of the head are far larger, so a sampler that saw them would take them."""
    tiny = save_folder("llama", tmp_path / "tiny", vocab_size=340)
    path = tiny.path / "model.safetensors"
    weights = load_file(path)
    weights["lm_head.weight"][300:] *= 50
    save_file(weights, path)
    plan = make_plan(tiny.path, Options())
    assert any("40 rows of the embedding have no token (ids 300 to 339)" in note for note in plan.notes)
    write_plan(plan, tmp_path / "model.gguf")
    g = open_gguf(tmp_path / "model.gguf")
    assert list(g.kv["tokenizer.ggml.token_type"])[299:] == [TokenType.USER_DEFINED] + [TokenType.UNUSED] * 40
    assert g.kv["tokenizer.ggml.tokens"][339] == "[PAD339]" and g.kv["llama.vocab_size"] == 340
    assert load_tokenizer(g).token_bytes(339) == b""
    engine = Engine.open(g, EngineOptions(n_ctx=128, threads=1))
    for temperature in (0.0, 2.0):
        session = engine.session(SessionOptions(params=SamplingParams(temperature=temperature)))
        session.sync([1, 2, 3])
        tokens = [token for step in session.generate(40) for token in step.tokens]
        assert len(tokens) == 40 and max(tokens) < 300


def test_fewer_rows_than_tokens_are_refused(tmp_path: Path) -> None:
    save_folder("llama", tmp_path / "tiny", vocab_size=298)
    with pytest.raises(FormatError, match="the tokenizer has 300 tokens, but the embedding has only 298 rows"):
        make_plan(tmp_path / "tiny", Options())


def test_added_tokens_past_the_base_leave_unused_gaps(tmp_path: Path) -> None:
    folder = with_tokenizer(tmp_path / "tiny")
    tool = {"id": 310, "content": "<tool_call>", "special": False, "normalized": False}
    marked = {"id": 311, "content": "<|forgotten|>", "special": False, "normalized": False}
    edit_json(folder / "tokenizer.json", lambda table: table["added_tokens"].extend([tool, marked]))
    vocab = read_vocabulary(folder)
    assert [vocab.tokens[i].type for i in (299, 300, 309, 310, 311)] == [
        TokenType.USER_DEFINED,
        TokenType.UNUSED,
        TokenType.UNUSED,
        TokenType.USER_DEFINED,
        TokenType.CONTROL,
    ]
    assert vocab.tokens[310].text == "<tool_call>" and any("10 ids below the last token" in note for note in vocab.notes)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"id": 299, "content": "<other>"}, "have the same id 299"),
        ({"id": 5, "content": "<other>"}, "has id 5, which is .* already"),
        ({"id": 310, "content": "<br>"}, "has the ids 299 and 310"),
        ({"id": 310, "content": "a"}, "has id 310, and .* in the vocabulary"),
        ({"id": -1, "content": "<other>"}, "impossible id -1"),
        ({"id": 1 << 40, "content": "<other>"}, "impossible id"),
        ({"content": "<other>"}, "no text or no id"),
    ],
)
def test_added_tokens_that_contradict(row: dict[str, Any], problem: str, tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    edit_json(tmp_path / "tokenizer.json", lambda table: table["added_tokens"].append(row))
    with pytest.raises(FormatError, match=problem):
        read_vocabulary(tmp_path)


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("merges", [["\u0120", "zzz"]], "of tokens that the vocabulary lacks"),
        ("merges", ["a b c"], "is no merge"),
        ("merges", {}, "the merges are no list"),
        ("vocab", {}, "no token for any single byte"),
        ("vocab", {"a": 0, "b": 0}, "the same id"),
        ("vocab", {"a": "x"}, "no table of ids"),
        ("vocab", {"\ud800": 0}, "not valid text"),
        ("type", "Unigram", "cannot be converted"),
    ],
)
def test_damaged_tokenizer_json(key: str, value: Any, problem: str, tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    change = {"merges": [], key: value}
    edit_json(tmp_path / "tokenizer.json", lambda table: table["model"].update(change))
    with pytest.raises((FormatError, UnsupportedError), match=problem):
        read_vocabulary(tmp_path)


def test_no_tokenizer_at_all(tmp_path: Path) -> None:
    tiny = save_folder("llama", tmp_path / "tiny", num_hidden_layers=1)
    (tiny.path / "tokenizer.json").unlink()
    with pytest.raises(FormatError, match=r"neither a tokenizer\.json nor a tokenizer\.model"):
        make_plan(tiny.path, Options())


# --- tied heads ------------------------------------------------------------------------------------------------------------


def test_a_tied_head_is_not_written_twice(tmp_path: Path) -> None:
    tiny = save_folder("qwen2", tmp_path / "tiny", tie_word_embeddings=True)
    path = tiny.path / "model.safetensors"
    weights = load_file(path)
    assert "lm_head.weight" not in weights and "output.weight" not in converted(tiny.path).tensors
    save_file({**weights, "lm_head.weight": weights["model.embed_tokens.weight"].clone()}, path)
    plan = make_plan(tiny.path, Options())
    assert "lm_head.weight is the embedding again and is not written twice" in plan.notes
    assert "output.weight" not in {item.name for item in plan.items}
    save_file({**weights, "lm_head.weight": weights["model.embed_tokens.weight"] + 1}, path)
    with pytest.raises(FormatError, match=r"tie_word_embeddings is true, but lm_head\.weight differs"):
        make_plan(tiny.path, Options())
    assert make_plan(tiny.path, Options(drop=("lm_head.weight",))).items


def test_an_untied_head_must_be_there(tmp_path: Path) -> None:
    tiny = save_folder("qwen2", tmp_path / "tiny", tie_word_embeddings=True)
    edit_json(tiny.path / "config.json", lambda table: table.update(tie_word_embeddings=False))
    with pytest.raises(FormatError, match=r"lm_head\.weight is missing"):
        make_plan(tiny.path, Options())


# --- SentencePiece ---------------------------------------------------------------------------------------------------------

WORDS = [
    *(SPACE + word for line in LINES[:9] for word in line.split()),
    *(word for line in LINES[:9] for word in line.split()),
    SPACE * 4,
    "\n",
]


def spm_folder(folder: Path, model: bytes, architecture: str = "llama", n: int = 1000) -> Path:
    save_folder(architecture, folder, num_hidden_layers=1 if architecture == "llama" else 6, vocab_size=n)
    for path in folder.glob("tokenizer*"):
        path.unlink()
    (folder / "tokenizer.model").write_bytes(model)
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": {"content": "</s>"}}))
    return folder


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_ids(prefix: bool, tmp_path: Path) -> None:
    pieces = spm_pieces(WORDS)
    g = converted(spm_folder(tmp_path / "tiny", spm_model(pieces, prefix=prefix)))
    assert g.kv["tokenizer.ggml.model"] == "llama" and g.kv["tokenizer.ggml.add_space_prefix"] is prefix
    assert list(g.kv["tokenizer.ggml.scores"])[: len(pieces)] == [score for _, score, _ in pieces]
    assert list(g.kv["tokenizer.ggml.token_type"])[: len(pieces)] == [type_ for _, _, type_ in pieces]
    assert (g.kv["tokenizer.ggml.bos_token_id"], g.kv["tokenizer.ggml.eos_token_id"]) == (1, 2)
    ours, theirs = load_tokenizer(g), spm_as_bpe(pieces, prefix)
    assert ours.add_bos
    for line in LINES:
        if line:
            assert ours.encode(line) == theirs.encode(line, add_special_tokens=False).ids, line
            assert ours.decode(ours.encode(line)) == line


@pytest.mark.parametrize("prefix", [True, False])
def test_a_rewritten_tokenizer_json_gives_the_same_ids(prefix: bool, tmp_path: Path) -> None:
    pieces = spm_pieces(WORDS)
    theirs = spm_as_bpe(pieces, prefix)
    folder = spm_folder(tmp_path / "tiny", b"")
    (folder / "tokenizer.model").unlink()
    theirs.save(str(folder / "tokenizer.json"))
    g = converted(folder)
    assert g.kv["tokenizer.ggml.add_space_prefix"] is prefix
    ours = load_tokenizer(g)
    for line in LINES:
        if line:
            assert ours.encode(line) == theirs.encode(line, add_special_tokens=False).ids, line


def test_merges_that_scores_cannot_express_are_refused(tmp_path: Path) -> None:
    spm_as_bpe(spm_pieces(WORDS), lone_merge=True).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UnsupportedError, match=r"do not stand together; convert with its tokenizer\.model"):
        read_vocabulary(tmp_path)

    def lose(table: dict[str, Any]) -> None:
        table["model"]["merges"] = table["model"]["merges"][1:]

    spm_as_bpe(spm_pieces(WORDS)).save(str(tmp_path / "tokenizer.json"))
    edit_json(tmp_path / "tokenizer.json", lose)
    with pytest.raises(UnsupportedError, match="have no merge, which scores cannot express"):
        read_vocabulary(tmp_path)


def test_added_tokens_of_a_sentencepiece_model(tmp_path: Path) -> None:
    """Past the end they are appended; a normal piece that is an added token gets its type."""
    pieces = [*spm_pieces(["ab"]), ("<|user|>", -5.0, 1)]
    (tmp_path / "tokenizer.model").write_bytes(spm_model(pieces))
    n = len(pieces)
    rows = {str(n - 1): {"content": "<|user|>", "special": True}, str(n): {"content": "<extra>", "special": False}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": rows}))
    vocab = read_vocabulary(tmp_path)
    assert [token.type for token in vocab.tokens[n - 1 :]] == [TokenType.CONTROL, TokenType.USER_DEFINED]
    rows = {"7": {"content": "<wrong>", "special": True}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": rows}))
    with pytest.raises(FormatError, match="has id 7, which is '<0x04>' here"):
        read_vocabulary(tmp_path)


def test_a_unigram_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(spm_model(spm_pieces(["ab"]), kind=1))
    with pytest.raises(UnsupportedError, match="unigram model; only BPE"):
        read_vocabulary(tmp_path)


def test_a_damaged_tokenizer_model_gives_our_error_at_every_cut(tmp_path: Path) -> None:
    whole = spm_model(spm_pieces(["ab"])[:20])
    path = tmp_path / "tokenizer.model"
    n_good = 0
    for n in range(len(whole)):
        path.write_bytes(whole[:n])
        try:
            read_vocabulary(tmp_path)
            n_good += 1
        except (FormatError, UnsupportedError):
            pass
    assert n_good <= 8  # only where the cut lies behind the trainer's part, between two fields
    for noise in (b"\xff" * 30, b"\x0a\xff\xff\xff\xff\x0f", b"\x00", b"\x0a\x04\x15\x00\x00\xc0"):
        path.write_bytes(noise)
        with pytest.raises(FormatError, match="damaged|cut short"):
            read_vocabulary(tmp_path)


# --- the texts around ------------------------------------------------------------------------------------------------------


def test_chat_templates(tmp_path: Path) -> None:
    folder = with_tokenizer(tmp_path / "tiny")
    assert (folder / "chat_template.jinja").exists()
    assert make_plan(folder, Options()).kv["tokenizer.chat_template"] == TEMPLATE
    (folder / "chat_template.jinja").unlink()
    assert "tokenizer.chat_template" not in make_plan(folder, Options()).kv
    named = [{"name": "default", "template": "A"}, {"name": "tool_use", "template": "B"}]
    edit_json(folder / "tokenizer_config.json", lambda table: table.update(chat_template=named))
    kv = make_plan(folder, Options()).kv
    assert (kv["tokenizer.chat_template"], kv["tokenizer.chat_template.tool_use"]) == ("A", "B")
    assert kv["tokenizer.chat_templates"] == ["tool_use"]
    edit_json(folder / "tokenizer_config.json", lambda table: table.update(chat_template=[{"name": "../x", "template": "B"}]))
    with pytest.raises(FormatError, match="is no name for a chat template"):
        make_plan(folder, Options())


def test_spelled_special_tokens_win_over_ids_and_lists_give_an_end_of_turn(tmp_path: Path) -> None:
    folder = with_tokenizer(tmp_path / "tiny")
    (folder / "generation_config.json").unlink()
    edit_json(folder / "config.json", lambda table: table.update(eos_token_id=[5, 298], bos_token_id=7))
    kv = make_plan(folder, Options()).kv
    assert (kv["tokenizer.ggml.bos_token_id"], kv["tokenizer.ggml.eos_token_id"]) == (297, 298)
    assert kv["tokenizer.ggml.eot_token_id"] == 5
    (folder / "tokenizer_config.json").unlink()
    (folder / "special_tokens_map.json").unlink(missing_ok=True)
    kv = make_plan(folder, Options()).kv
    assert [kv[f"tokenizer.ggml.{name}_token_id"] for name in ("bos", "eos", "eot")] == [7, 5, 298]


def test_added_text_token_is_matched_in_plain_text(tmp_path: Path) -> None:
    tokenizer = byte_level()
    tokenizer.add_tokens([AddedToken("    ", normalized=False)])
    ours = load_tokenizer(converted(with_tokenizer(tmp_path / "tiny", tokenizer)))
    for line in ("a    b", "x<br>y", "      six"):
        assert ours.encode(line) == tokenizer.encode(line, add_special_tokens=False).ids
