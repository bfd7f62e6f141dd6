"""What the request bodies of the APIs have in common: sampling, thinking, text in parts (tools.py: their tools).

The rule for fields: one that would change the answer and cannot be obeyed is refused with its name; one that is harmless is
ignored. The readers here say which is which once for all APIs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ds4py.server.asked import Sampling, bad
from ds4py.server.fields import Fields, kind_of

# Words for "do not think" among the efforts.
_NO_EFFORT: Final = ("none", "off", "disabled")
_EFFORTS: Final = ("minimal", "low", "medium", "high", "xhigh", "max")


def sampling(body: Fields) -> Sampling:
    """The sampling fields of all APIs; llama.cpp's and vLLM's additional ones too."""
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
    )


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


def thinking(body: Fields) -> tuple[bool | None, str | None]:
    """(whether to think, effort) from all the ways to say it: `thinking` (a flag or an object with type), `think`,
    `enable_thinking`, `chat_template_kwargs`, `reasoning_effort`, `reasoning.effort`, `output_config.effort`."""
    think, effort = None, body.text("reasoning_effort")
    spoken = body.any("thinking")
    if isinstance(spoken, Mapping):
        kind = Fields(spoken, "thinking").text("type")
        think = None if kind is None else kind != "disabled"
    elif spoken is not None:
        think = body.flag("thinking")
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
    if effort is None or effort in _EFFORTS:
        return think, effort
    if effort in _NO_EFFORT:
        return (False if think is None else think), None
    raise bad(f"the effort must be none, {', '.join(_EFFORTS[:-1])} or {_EFFORTS[-1]}, not {effort!r:.40}", "reasoning_effort")


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


def no_media(kind: str, where: str) -> Exception:
    return bad(f"{where} is of the kind {kind!r:.40}, but this server reads text only", where)
