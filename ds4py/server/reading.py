"""What the request bodies of the APIs have in common: sampling, thinking, text in parts (tools.py: their tools).

The rule for fields: one that would change the answer and cannot be obeyed is refused with its name; one that is harmless is
ignored. The readers here say which is which once for all APIs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ds4py.drafters.config import LONGEST
from ds4py.server.asked import Sampling, bad
from ds4py.server.fields import Fields, kind_of

# Words for "do not think" among the efforts.
_NO_EFFORT: Final = ("none", "off", "disabled")
_EFFORTS: Final = ("minimal", "low", "medium", "high", "xhigh", "max")


# Fields of llama.cpp and vLLM that would change the answer and are not known here, with the values at which they would not.
_NEUTRAL: Final[Mapping[str, Sequence[Any]]] = {
    **dict.fromkeys(("typical_p", "tfs_z", "length_penalty"), (1,)),
    **dict.fromkeys(("mirostat", "dynatemp_range", "xtc_probability", "dry_multiplier", "min_tokens", "n_probs"), (0,)),
    **dict.fromkeys(("ignore_eos", "use_beam_search", "include_stop_str_in_output", "echo"), (False,)),
    **dict.fromkeys(("stop_token_ids", "bad_words", "documents"), ([], "")),
    **dict.fromkeys(("guided_choice", "guided_grammar", "structured_outputs", "chat_template"), ()),
    "top_n_sigma": (-1, 0),
}


def refuse_unknown_sampling(body: Fields) -> None:
    """Raises Refusal for a field of that table with an effect."""
    for name, neutral in _NEUTRAL.items():
        value = body.any(name)
        if value is not None and value not in neutral:
            raise bad(f"{name} is not supported", name)


def sampling(body: Fields) -> Sampling:
    """The sampling fields of all APIs; llama.cpp's and vLLM's additional ones too. Raises Refusal for those that would change the
    answer and cannot be obeyed."""
    refuse_unknown_sampling(body)
    repeat = body.number("repeat_penalty", 0.01, 100)
    vllm = body.number("repetition_penalty", 0.01, 100)
    return Sampling(
        temperature=body.number("temperature", 0, 100),
        top_p=body.number("top_p", 0, 1),
        top_k=_top_k(body),
        min_p=body.number("min_p", 0, 1),
        seed=body.integer("seed"),
        repeat_penalty=repeat if repeat is not None else vllm,
        frequency_penalty=body.number("frequency_penalty", -2, 2),
        presence_penalty=body.number("presence_penalty", -2, 2),
        bias=_bias(body),
        max_draft=_max_draft(body),
    )


def _max_draft(body: Fields) -> int | None:
    """`speculative`: true, false or {"n_max": N}; llama.cpp's older name is "speculative.n_max". A request can limit drafts, not
    begin them."""
    flat = body.integer("speculative.n_max", 0, LONGEST)
    if isinstance(body.any("speculative"), bool):
        return flat if body.flag("speculative") else 0
    table = body.object("speculative")
    most = table.integer("n_max", 0, LONGEST) if table is not None else None
    return most if most is not None else flat


def _top_k(body: Fields) -> int | None:
    k = body.integer("top_k", -1)
    return 0 if k == -1 else k  # both spell "all"


def _bias(body: Fields) -> Mapping[int, float]:
    table = body.object("logit_bias")
    found: dict[int, float] = {}
    for name in table.table if table is not None else ():
        assert table is not None
        value = table.number(name, -100, 100)
        if not name.isascii() or not name.isdigit() or len(name) > 9:
            raise bad(f"logit_bias names a token by its id, a whole number, not {name!r:.40}", "logit_bias")
        if value is not None:
            found[int(name)] = value
    return found


@dataclass(frozen=True)
class Thinking:
    """What a request says about it; None: nothing. tokens: most of them."""

    think: bool | None
    effort: str | None
    tokens: int | None


def thinking(body: Fields) -> Thinking:
    """From all the ways to say it: `thinking` (a flag or an object with type and budget_tokens), `think`, `enable_thinking`,
    `thinking_budget`, `thinking_budget_tokens`, `chat_template_kwargs`, `reasoning_effort`, `reasoning.effort`,
    `output_config.effort`."""
    tokens = [body.integer(name, -1) for name in ("thinking_budget", "thinking_budget_tokens")]
    think = None
    if isinstance(body.any("thinking"), Mapping):
        spoken = Fields(body.any("thinking"), "thinking")
        kind = spoken.text("type")
        think = None if kind is None else kind != "disabled"
        tokens.append(spoken.integer("budget_tokens", 0) if think is not False else None)
    elif body.any("thinking") is not None:
        think = body.flag("thinking")
    think, effort = _switches(body, think)
    most = min((n for n in tokens if n is not None and n >= 0), default=None)
    if most == 0 and think is None:
        think = False
    if effort is None or effort in _EFFORTS:
        return Thinking(think, effort, most or None)
    if effort in _NO_EFFORT:
        return Thinking(False if think is None else think, None, most or None)
    raise bad(f"the effort must be none, {', '.join(_EFFORTS[:-1])} or {_EFFORTS[-1]}, not {effort!r:.40}", "reasoning_effort")


def _switches(body: Fields, think: bool | None) -> tuple[bool | None, str | None]:
    """(think, effort) of the plain switches and of those for templates; `think`: what was said before."""
    effort = body.text("reasoning_effort")
    for name in ("think", "enable_thinking"):
        value = body.flag(name)
        think = value if value is not None else think
    template = body.object("chat_template_kwargs")
    if template is not None:
        for name in ("enable_thinking", "thinking"):
            value = template.flag(name)
            think = value if value is not None else think
        effort = template.text("reasoning_effort") or effort
    for name in ("reasoning", "output_config"):
        nested = body.object(name)
        effort = (nested.text("effort") if nested is not None else None) or effort
    return think, effort


def stops(body: Fields, name: str = "stop") -> tuple[str, ...]:
    """A stop string or a list of them; empty ones are ignored."""
    value = body.any(name)
    if value is None:
        return ()
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise bad(f"{name} must be a string or a list of strings", name)
    return tuple(item for item in found if item)


def budget(body: Fields, *names: str) -> int | None:
    """The least of the fields that say how much may be generated; -1 is no limit."""
    found = [value for name in names if (value := body.integer(name, -1)) is not None and value != -1]
    return min(found) if found else None


def text_of(fields: Fields, name: str, kinds: Sequence[str] = ("text", "input_text", "output_text", "refusal")) -> str:
    """Text that may come as a string, as null, or in parts; parts are joined as they are. Raises Refusal for other parts."""
    value = fields.any(name)
    if value is None or isinstance(value, str):
        return value or ""
    if not isinstance(value, list):
        raise bad(f"{fields.path(name)} must be a string or a list of parts, not {kind_of(value)}", fields.path(name))
    texts = []
    for i, item in enumerate(value):
        part = Fields({"type": "text", "text": item} if isinstance(item, str) else item, f"{fields.path(name)}[{i}]")
        kind = part.text("type") or "text"
        if kind not in kinds:
            raise no_media(kind, part.where)
        texts.append(part.text("refusal" if kind == "refusal" else "text") or "")
    return "".join(texts)


def result_of(fields: Fields, name: str) -> str:
    """What a tool gave, as text. A part that is none (a picture, a file) stands in a conversation for good, so it is not refused:
    the model is told that it is there and cannot be read."""
    value = fields.any(name)
    if not isinstance(value, list):
        return text_of(fields, name)
    texts = []
    for i, item in enumerate(value):
        part = Fields(item if isinstance(item, Mapping) else {"type": "text", "text": item}, f"{fields.path(name)}[{i}]")
        kind = part.text("type") or "text"
        is_text = kind in ("text", "input_text", "output_text")
        texts.append((part.text("text") or "") if is_text else f"({kind}: not shown, only text can be read here)")
    return "".join(texts)


def no_media(kind: str, where: str) -> Exception:
    return bad(f"{where} is of the kind {kind!r:.40}, but this server reads text only", where)
