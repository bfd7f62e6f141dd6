"""The list of models: one, with what programs want to know of it, in the fields of both OpenAI's and Anthropic's lists."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from ds4py.server.worker import Served

_PARAMETERS: Final = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "stop", "max_tokens", "tools", "tool_choice", "response_format"),
    *("frequency_penalty", "presence_penalty", "logit_bias", "reasoning_effort"),
)


def model_card(served: Served, created: int) -> dict[str, Any]:
    n_ctx = served.engine.n_ctx
    return {
        "id": served.name,
        "object": "model",
        "created": created,
        "owned_by": "ds4py",
        "name": served.name,
        "context_length": n_ctx,
        "max_model_len": n_ctx,
        "top_provider": {"context_length": n_ctx, "max_completion_tokens": n_ctx, "is_moderated": False},
        "supported_parameters": list(_PARAMETERS),
        "type": "model",
        "display_name": served.name,
        "created_at": datetime.fromtimestamp(created, UTC).isoformat().replace("+00:00", "Z"),
    }


def model_list(served: Served, created: int) -> dict[str, Any]:
    card = model_card(served, created)
    return {"object": "list", "data": [card], "has_more": False, "first_id": served.name, "last_id": served.name}
