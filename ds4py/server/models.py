"""The list of models: one, with what programs want to know of it, in the fields of both OpenAI's and Anthropic's lists.

A request may give any name; what is loaded answers, and the answer tells the name again. Some names also say whether to think, as
they do in ds4 and at the vendors': those of their services, and the served name with one of the endings. They hold where a
request says nothing about it.
"""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from ds4py.server.asked import Asked
from ds4py.server.worker import Served

_PARAMETERS: Final = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "stop", "max_tokens", "tools", "tool_choice", "response_format"),
    *("frequency_penalty", "presence_penalty", "logit_bias", "reasoning_effort"),
)


_THINKS: Final = {"-chat": False, "-no-think": False, "-nothink": False, "-reasoner": True}
_SERVICES = re.compile(r"(?:deepseek|zai/|glm|qwen3\.8)\S*-(?:chat|reasoner|no-?think)")


def thinks_by_name(name: str, served: str) -> bool | None:
    """Whether a model's name says to think; None: it says nothing."""
    ending = next((end for end in _THINKS if name.endswith(end)), None)
    if ending is None or name == served:
        return None
    return _THINKS[ending] if _SERVICES.fullmatch(name.lower()) or name.removesuffix(ending) == served else None


def by_name(asked: Asked, served: str) -> Asked:
    """`asked`, with what its model's name says about thinking."""
    if asked.think is not None or asked.effort is not None:
        return asked
    return replace(asked, think=thinks_by_name(asked.model, served))


def model_card(served: Served, created: int, name: str | None = None) -> dict[str, Any]:
    """name: the one it was asked for by; None: its own."""
    name = name or served.name
    n_ctx = served.engine.n_ctx
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "ds4py",
        "name": name,
        "context_length": n_ctx,
        "max_model_len": n_ctx,
        "top_provider": {"context_length": n_ctx, "max_completion_tokens": n_ctx, "is_moderated": False},
        "supported_parameters": list(_PARAMETERS),
        "type": "model",
        "display_name": name,
        "created_at": datetime.fromtimestamp(created, UTC).isoformat().replace("+00:00", "Z"),
    }


def model_list(served: Served, created: int) -> dict[str, Any]:
    card = model_card(served, created)
    return {"object": "list", "data": [card], "has_more": False, "first_id": served.name, "last_id": served.name}
