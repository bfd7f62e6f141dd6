"""The fixed texts of DeepSeek V4's prompts, as the model was trained on them: a letter changed here is a worse answer.

Markers in these texts (`<think>`, the DSML mark) are tokens, since the texts are ours; the same spelled in a message are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

BOS: Final = "<｜begin▁of▁sentence｜>"
EOS: Final = "<｜end▁of▁sentence｜>"
USER: Final = "<｜User｜>"
ASSISTANT: Final = "<｜Assistant｜>"
REMINDER: Final = "<｜latest_reminder｜>"
THINK: Final = "<think>"
END_THINK: Final = "</think>"

# Small jobs the model does instead of answering. All but "action" follow the message at once; that one follows the turn's header.
TASKS: Mapping[str, str] = MappingProxyType(
    {name: f"<｜{name}｜>" for name in ("action", "query", "authority", "domain", "title", "read_url")}
)

RESULT: Final = ("<tool_result>", "</tool_result>")
RESPONSE: Final = "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n"

_ABSOLUTE: Final = (
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
    "You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root cause, rigorously"
    " stress-testing your logic against all potential paths, edge cases, and adversarial scenarios.\n"
    "Explicitly write out your entire deliberation process, documenting every intermediate step, considered alternative, and"
    " rejected hypothesis to ensure absolutely no assumption is left unchecked.\n\n"
)
_BEYOND: Final = (
    "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\n"
    "You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: exhaustively decompose the problem"
    " into its most fundamental components, trace every causal chain to its root, and resolve the underlying cause rather than"
    " any surface symptom.\n"
    "Do not stop reasoning until you have independently verified the solution from multiple angles and are certain that no"
    " assumption remains unchecked and no error remains undiscovered.\n\n"
)
# What each revision of the model reads in front of everything else; other words of effort, and none, write nothing.
EFFORTS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {"preview": {"max": _ABSOLUTE}, "0731": {"high": _ABSOLUTE, "max": _BEYOND}}
)

_TOOLS: Final = """## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "<{mark}tool_calls>" \
block like the following:

<{mark}tool_calls>
<{mark}invoke name="$TOOL_NAME">
<{mark}parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</{mark}parameter>
...
</{mark}invoke>
<{mark}invoke name="$TOOL_NAME2">
...
</{mark}invoke>
</{mark}tool_calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, objects), \
pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> BEFORE any \
tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

"""
_TOOLS_END: Final = "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n"


def around_tools(mark: str) -> tuple[str, str]:
    """What stands before and behind the tools' schemas."""
    return _TOOLS.replace("{mark}", mark), _TOOLS_END
