"""SentencePiece vocabularies: merging, byte fallback (FC-14), leading spaces (FC-16)."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ds4py.tokenizer import Tokenizer

Make = Callable[..., Tokenizer]


def byte_ids(text: str) -> list[int]:
    return [3 + byte for byte in text.encode()]


def test_rare_characters_become_bytes_and_come_back(sentencepiece: Make) -> None:
    tokenizer = sentencepiece({"a": 0.0, "b": 0.0, "\u2581": 0.0}, add_space_prefix=False)
    for text in ("a한b", "🜁", "a b", "\x00\n", "<0xEA>", "e\u0301"):
        ids = tokenizer.encode(text)
        assert tokenizer.vocab.unk_id not in ids
        assert tokenizer.decode(ids) == text
    assert tokenizer.encode("a한b") == [259, *byte_ids("한"), 260]
    assert tokenizer.decode([3 + 0xEA, 3 + 0xB0, 3 + 0x80]) == "가"


def test_unknown_only_where_no_byte_tokens_exist(load: Make) -> None:
    tokenizer = load(
        model="llama", tokens=["<unk>", "a"], token_type=[2, 1], scores=[0.0, 0.0], unknown_token_id=0, add_space_prefix=False
    )
    assert tokenizer.encode("aéa") == [1, 0, 1]


def test_best_score_wins_and_ties_go_left(sentencepiece: Make) -> None:
    words = {"a": -9.0, "b": -9.0, "c": -9.0, "ab": -2.0, "bc": -1.0, "aa": -5.0}
    tokenizer = sentencepiece(words, add_space_prefix=False)
    spell = lambda text: [tokenizer.vocab.tokens[i] for i in tokenizer.encode(text)]  # noqa: E731
    assert spell("abc") == ["a", "bc"]
    assert spell("aaa") == ["aa", "a"]


def test_literal_byte_spelling_stays_text(sentencepiece: Make) -> None:
    words = {char: -9.0 for char in "<0x>A"} | {"<0": -1.0, "<0x": -1.0, "<0x0": -1.0, "<0x0A": -1.0}
    tokenizer = sentencepiece(words, add_space_prefix=False)
    assert [tokenizer.vocab.tokens[i] for i in tokenizer.encode("<0x0A>")] == ["<0x0A", ">"]


def test_leading_space(sentencepiece: Make) -> None:
    words = {"\u2581": -9.0, "\u2581Hello": -1.0, "\u2581world": -1.0, **{char: -8.0 for char in "Helowrd"}}
    words |= {
        "\u2581H": -3.0,
        "\u2581He": -3.0,
        "\u2581Hel": -3.0,
        "\u2581Hell": -3.0,
        "\u2581w": -3.0,
        "\u2581wo": -3.0,
        "\u2581wor": -3.0,
        "\u2581worl": -3.0,
    }
    tokenizer = sentencepiece(words)
    hello, world = (tokenizer.vocab.tokens.index(word) for word in ("\u2581Hello", "\u2581world"))
    assert tokenizer.encode("Hello world") == [hello, world]
    assert tokenizer.decode([1, hello, world]) == tokenizer.decode([hello, world]) == "Hello world"
    assert tokenizer.decode(tokenizer.encode("  Hello")) == "  Hello"
    assert tokenizer.detokenizer().push(world) == " world"  # a continuation keeps its space
    assert tokenizer.detokenizer(text_start=True).push(world) == "world"
    without = sentencepiece(words, add_space_prefix=False)
    assert without.decode([world]) == " world"


@st.composite
def vocabularies(draw: st.DrawFn) -> dict[str, float]:
    """Random vocabularies over a few characters, with tokens that have spaces anywhere."""
    words = draw(st.lists(st.text("ab\u2581\n\0", min_size=1, max_size=5), min_size=1, max_size=25, unique=True))
    return {word: float(draw(st.integers(-6, 0))) for word in words}


def merged_naively(text: str, scores: dict[str, float]) -> list[str]:
    """The definition: join the best-scored neighbours of the whole text, leftmost on ties, until no join is a token."""
    symbols = list(text)
    while True:
        pairs = [(-scores[a + b], i) for i, (a, b) in enumerate(zip(symbols, symbols[1:], strict=False)) if a + b in scores]
        if not pairs:
            return symbols
        _, i = min(pairs)
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(vocabularies(), st.text("ab \n\0", max_size=30))
def test_words_apart_are_the_whole_text_merged(sentencepiece: Make, words: dict[str, float], text: str) -> None:
    tokenizer = sentencepiece(words, add_space_prefix=False)
    want = []
    for symbol in merged_naively(text.replace(" ", "\u2581"), words):
        want += [259 + list(words).index(symbol)] if symbol in words else byte_ids(symbol.replace("\u2581", " "))
    assert tokenizer.encode(text) == want
