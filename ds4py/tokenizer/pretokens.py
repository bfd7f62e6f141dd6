r"""How byte-level vocabularies cut text into words before merging: the `tokenizer.ggml.pre` names and their regular expressions.

The idea: an expression is part of a model's definition, like its merges: with another one the text still encodes, but into ids
the model has hardly seen. So a name that is not in the table is refused. Each expression of a list is applied to the pieces
that the one before left; matches are cut out and what lies between them is kept. Expressions run in the `tokenizers` library, so
`\p{L}` and `\s` mean what they meant when the vocabularies were made.
Rejected: falling back to "default" (llama.cpp did, and text quality sank silently).
"""

from __future__ import annotations

from dataclasses import dataclass

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_QWEN2 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_QWEN35 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
_LLAMA3 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_SEED = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"
_BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
_ASCII_PUNCT = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""
_DEEPSEEK3 = rf"{_ASCII_PUNCT}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"


def _by_case(suffix: str, digits: str) -> str:
    """Words that end where lower case turns to upper: the expression of o200k and its relatives."""
    lead = r"[^\r\n\p{L}\p{N}]?"
    words = rf"{lead}[{_UPPER}]*[{_LOWER}]+{suffix}|{lead}[{_UPPER}]+[{_LOWER}]*{suffix}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"


# Cased letters as the DeepSeek LLM vocabulary lists them: an old Unicode version, without the mathematical alphabets.
_DEEPSEEK_CASED = (
    "41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386 388-38A 38C 38E-3A1 3A3-3F5 "
    "3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A 1E00-1F15 "
    "1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC "
    "1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 212A-212D "
    "212F-2134 2139 213C-213F 2145-2149 214E 2183 2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D A680-A69B "
    "A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3 104D8-104FB "
    "10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943"
)


def _characters(ranges: str) -> str:
    """Hexadecimal code points and ranges as the inside of a character class."""
    return "".join("-".join(chr(int(end, 16)) for end in part.split("-")) for part in ranges.split())


_CJK = "[一-龥\u0800-一가-\ud7ff]+"
_KANA = "[一-龥぀-ゟ゠-ヿ]+"


@dataclass(frozen=True)
class Splitting:
    """One way of cutting text. whole_words: a piece that is in the vocabulary as it stands is not merged again (tiktoken's rule).
    add_bos: the vocabulary begins texts with BOS unless the file says otherwise."""

    patterns: tuple[str, ...]
    whole_words: bool = False
    add_bos: bool = False


def splitting(pre: str) -> Splitting | None:
    """The splitting that `tokenizer.ggml.pre` names, or None if it is unknown here."""
    for names, found in _table():
        if pre in names.split():
            return found
    return None


def known_names() -> list[str]:
    """All names of the table, sorted."""
    return sorted(name for names, _ in _table() for name in names.split())


def _table() -> tuple[tuple[str, Splitting], ...]:
    digit, digits3 = r"\p{N}", r"\p{N}{1,3}"
    return (
        ("default", Splitting((r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"))),
        ("gpt-2 phi-2 mpt olmo gigachat a.x-4.0 mellum exaone4 trillion granite-docling modern-bert", Splitting((_GPT2,))),
        ("smollm starcoder refact command-r codeshell exaone minerva-7b mellum2", Splitting((digit, _GPT2))),
        ("falcon", Splitting((r"[\p{P}$+<=>^~|`]+", _GPT2, "[0-9][0-9][0-9]"))),
        ("qwen2 deepseek-r1-qwen megrez stablelm2 hunyuan solar-open grok-2 kormo f2llmv2", Splitting((_QWEN2,))),
        ("qwen35", Splitting((_QWEN35,))),
        ("llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2", Splitting((_LLAMA3,), True, True)),
        ("glm4 chatglm-bpe dbrx smaug-bpe", Splitting((_LLAMA3,))),
        ("deepseek-v3 joyai-llm hunyuan-dense hy_v4", Splitting((digits3, _KANA, _DEEPSEEK3))),
        (
            "deepseek-llm",
            Splitting(
                (
                    r"[\r\n]",
                    rf"\s?[{_characters(_DEEPSEEK_CASED)}]+",
                    "\\s?[!-/:-~！-／：-～‘-‟\u3000-。]+",
                    r"\s+$",
                    _CJK,
                    r"\p{N}+",
                )
            ),
        ),
        ("deepseek-coder", Splitting((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, digit))),
        ("gpt-4o llama4 minimax-m2 kanana2", Splitting((_by_case(f"{_CONTRACTION}?", digits3),))),
        ("tekken", Splitting((_by_case("", digit),), True, True)),
        ("seed-coder", Splitting((_SEED,))),
        ("bailingmoe bailingmoe2 llada-moe", Splitting((_BAILING,))),
    )
