"""Every documented field of every API: obeyed, refused by name, or ignored, quietly or with a word to the log.

The tables name the fields of OpenAI's and Anthropic's published clients, and those of llama.cpp, vLLM and Qwen that people send.
A field that would change the answer and cannot be obeyed is refused; one that is harmless is not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ds4py.chat import Message
from ds4py.server import chat_completions, completions, messages, responses
from ds4py.server.asked import Asked, Refusal, Shown, ToolChoice

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}
CHAT_TOOL = {"type": "function", "function": {"name": "f", "strict": True, "parameters": SCHEMA}}
FLAT_TOOL = {"type": "function", "name": "f", "strict": True, "parameters": SCHEMA}
CLAUDE_TOOL = {"name": "f", "input_schema": SCHEMA, "cache_control": {"type": "ephemeral"}, "strict": True}
USER: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]

BASE: dict[str, tuple[Any, dict[str, Any]]] = {
    "chat": (chat_completions, {"messages": USER}),
    "completions": (completions, {"prompt": "hi"}),
    "responses": (responses, {"input": "hi"}),
    "messages": (messages, {"messages": USER}),
}
QUIET, TOLD = "quiet", "told"


def of(name: str) -> Callable[[Asked], Any]:
    """The value that is asked, by its name."""
    return lambda asked: getattr(asked.sampling, name) if hasattr(asked.sampling, name) else getattr(asked, name)


def tool_names(asked: Asked) -> list[str]:
    return [tool["function"]["name"] for tool in asked.tools]


# field, value, what becomes of it: QUIET, TOLD, words of a refusal, or (what is asked, the value that it has then)
Row = tuple[str, Any, Any]
SAMPLING: list[Row] = [
    ("temperature", 0.5, (of("temperature"), 0.5)),
    ("top_p", 0.5, (of("top_p"), 0.5)),
    ("top_k", 5, (of("top_k"), 5)),
    ("top_k", -1, (of("top_k"), 0)),
    ("min_p", 0.1, (of("min_p"), 0.1)),
    ("seed", 7, (of("seed"), 7)),
    ("repeat_penalty", 1.1, (of("repeat_penalty"), 1.1)),
    ("repetition_penalty", 1.2, (of("repeat_penalty"), 1.2)),
    ("frequency_penalty", 0.5, (of("frequency_penalty"), 0.5)),
    ("presence_penalty", -0.5, (of("presence_penalty"), -0.5)),
    ("logit_bias", {"5": -100}, (of("bias"), {5: -100.0})),
    *[(name, value, f"{name} is not supported") for name, value in [
        ("typical_p", 0.9), ("tfs_z", 0.5), ("mirostat", 2), ("dynatemp_range", 0.5), ("xtc_probability", 0.1),
        ("dry_multiplier", 0.8), ("top_n_sigma", 1.0), ("min_tokens", 5), ("ignore_eos", True), ("n_probs", 3),
        ("stop_token_ids", [5]), ("bad_words", ["x"]), ("use_beam_search", True),
        ("guided_choice", ["a", "b"]), ("structured_outputs", {"choice": ["a"]}), ("chat_template", "{{ x }}"),
    ]],
    *[(name, value, QUIET) for name, value in [
        ("typical_p", 1.0), ("mirostat", 0), ("xtc_probability", 0), ("top_n_sigma", -1), ("min_tokens", 0),
        ("ignore_eos", False),
    ]],
    ("stream", True, (of("stream"), True)),
    ("model", "x", (of("model"), "x")),
    ("wild", 1, TOLD),
    ("samplers", "edkypmxt", TOLD),  # pages of llama.cpp send an order, and all of its samplers at values without effect
]  # fmt: skip
THINKING: list[Row] = [
    ("thinking", {"type": "disabled"}, (of("think"), False)),
    ("thinking", True, (of("think"), True)),
    ("think", False, (of("think"), False)),
    ("enable_thinking", False, (of("think"), False)),
    ("thinking_budget", 9, (of("think_tokens"), 9)),
    ("reasoning_effort", "xhigh", (of("effort"), "xhigh")),
    ("reasoning_effort", "none", (of("think"), False)),
    ("chat_template_kwargs", {"enable_thinking": True, "reasoning_effort": "low"}, (of("effort"), "low")),
]
OPENAI: list[Row] = [
    ("logprobs", True, "logprobs are not supported"),
    ("n", 1, QUIET),
    ("n", 2, "n must be 1"),
    ("stop", "x", (of("stop"), ("x",))),
    ("stop", ["x", "", "y"], (of("stop"), ("x", "y"))),
    ("stream_options", {"include_usage": True, "include_obfuscation": False}, (of("include_usage"), True)),
    ("max_tokens", 5, (of("max_tokens"), 5)),
    ("max_tokens", -1, (of("max_tokens"), None)),
    ("n_predict", 6, (of("max_tokens"), 6)),
    ("user", "u", QUIET),
    ("json_schema", SCHEMA, (of("grammar"), ("json_schema", SCHEMA))),
    ("guided_json", SCHEMA, (of("grammar"), ("json_schema", SCHEMA))),
    ("guided_regex", "a+", (of("grammar"), ("regex", "a+"))),
    ("grammar", "root ::= 'a'", (of("grammar"), ("gbnf", "root ::= 'a'"))),
    ("response_format", FORMAT, (of("grammar"), ("json_schema", SCHEMA))),
    ("response_format", {"type": "json_object"}, (of("grammar"), ("json_object", ""))),
    ("response_format", {"type": "text"}, (of("grammar"), None)),
    ("response_format", {"type": "grammar"}, "response_format.type"),
    ("echo", True, "echo is not supported"),
]
FIELDS: dict[str, list[Row]] = {
    "chat": [
        *SAMPLING, *THINKING, *OPENAI,
        ("messages", [{"role": "developer", "content": "x"}, *USER], (lambda asked: asked.messages[0], Message("system", "x"))),
        ("max_completion_tokens", 5, (of("max_tokens"), 5)),
        ("top_logprobs", 2, "logprobs are not supported"),
        ("audio", {"voice": "x", "format": "wav"}, "text only"),
        ("modalities", ["text", "audio"], "text only"),
        ("modalities", ["text"], QUIET),
        ("functions", [{"name": "f"}], "use tools"),
        ("function_call", "auto", "use tools"),
        ("tools", [CHAT_TOOL], (tool_names, ["f"])),
        ("tools", [{"type": "custom", "custom": {"name": "c"}}], (lambda asked: asked.shown, {"c": Shown("c", custom=True)})),
        ("tool_choice", "none", (of("choice"), ToolChoice("none"))),
        ("parallel_tool_calls", False, (of("choice"), ToolChoice("auto", (), False))),
        *[(name, value, QUIET) for name, value in [
            ("metadata", {"a": "b"}), ("store", True), ("service_tier", "flex"), ("safety_identifier", "x"),
            ("prompt_cache_key", "x"), ("prompt_cache_options", {"mode": "implicit"}), ("prompt_cache_retention", "24h"),
            ("cache_prompt", True),
        ]],
        *[(name, value, TOLD) for name, value in [
            ("prediction", {"type": "content", "content": "x"}), ("verbosity", "low"), ("web_search_options", {}),
            ("moderation", {"model": "x"}),
        ]],
    ],
    "completions": [
        *SAMPLING, *OPENAI,
        ("prompt", ["x"], (of("prompt"), "x")),
        ("prompt", [1, 2], (of("prompt"), (1, 2))),
        ("logprobs", 0, "logprobs are not supported"),
        ("best_of", 1, QUIET),
        ("best_of", 2, "best_of is not supported"),
        ("suffix", "", QUIET),
        ("suffix", "x", "suffix is not supported"),
    ],
    "responses": [
        *SAMPLING, *THINKING,
        ("input", [{"role": "user", "content": "x"}], (of("messages"), (Message("user", "x"),))),
        ("instructions", "x", (lambda asked: asked.messages[0], Message("system", "x"))),
        ("max_output_tokens", 5, (of("max_tokens"), 5)),
        ("reasoning", {"effort": "low", "summary": "auto"}, (of("effort"), "low")),
        ("text", {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}, "verbosity": "low"},
         (of("grammar"), ("json_schema", SCHEMA))),
        ("text", {"format": {"type": "json_object"}}, (of("grammar"), ("json_object", ""))),
        ("text", {"format": {"type": "xml"}}, "text.format"),
        ("tools", [FLAT_TOOL, {"type": "web_search"}], (tool_names, ["f"])),
        ("tool_choice", "required", "no tools that a model can call"),
        ("parallel_tool_calls", False, (of("choice"), ToolChoice("auto", (), False))),
        ("top_logprobs", 3, "logprobs are not supported"),
        ("include", ["message.output_text.logprobs"], "logprobs are not supported"),
        ("background", True, "answers while the client waits"),
        ("background", False, QUIET),
        ("conversation", "conv_1", "send the whole conversation"),
        ("previous_response_id", "resp_1", "send the whole conversation"),
        ("prompt", {"id": "pmpt_1"}, "send the whole conversation"),
        *[(name, value, QUIET) for name, value in [
            ("include", ["reasoning.encrypted_content"]), ("metadata", {}), ("max_tool_calls", 3), ("store", True), ("user", "u"),
            ("prompt_cache_key", "x"), ("prompt_cache_options", {}), ("prompt_cache_retention", "24h"), ("service_tier", "auto"),
            ("safety_identifier", "x"), ("stream_options", {"include_obfuscation": True}), ("truncation", "auto"),
            ("client_metadata", {}),
        ]],
        ("context_management", [{"type": "compaction"}], TOLD),
        ("moderation", {"model": "x"}, TOLD),
    ],
    "messages": [
        *SAMPLING, *THINKING,
        ("messages", [{"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {}}]}],
         (of("messages"), (Message("user", "x"),))),
        ("system", [{"type": "text", "text": "x"}], (lambda asked: asked.messages[0], Message("system", "x"))),
        ("max_tokens", 5, (of("max_tokens"), 5)),
        ("stop_sequences", ["x"], (of("stop"), ("x",))),
        ("thinking", {"type": "enabled", "budget_tokens": 1024}, (of("think_tokens"), 1024)),
        ("thinking", {"type": "adaptive", "display": "summarized"}, (of("think"), True)),
        ("output_config", {"effort": "low"}, (of("effort"), "low")),
        ("output_config", {"format": {"type": "json_schema", "schema": SCHEMA}}, (of("grammar"), ("json_schema", SCHEMA))),
        ("output_format", {"type": "json_schema", "schema": SCHEMA}, (of("grammar"), ("json_schema", SCHEMA))),
        ("output_format", {"type": "xml"}, "must be a json_schema"),
        ("tools", [CLAUDE_TOOL, {"type": "web_search_20250305", "name": "web_search"}], (tool_names, ["f"])),
        ("tool_choice", {"type": "auto", "disable_parallel_tool_use": True}, (of("choice"), ToolChoice("auto", (), False))),
        ("tool_choice", {"type": "maybe"}, "tool_choice.type"),
        *[(name, value, QUIET) for name, value in [
            ("metadata", {"user_id": "x"}), ("cache_control", {"type": "ephemeral"}), ("container", "x"),
            ("service_tier", "auto"), ("context_management", {"edits": []}), ("betas", ["x"]), ("inference_geo", "eu"),
            ("diagnostics", {}),
            ("speed", "standard"), ("user_profile_id", "x"), ("workspace_id", "x"),
        ]],
        ("mcp_servers", [{"url": "x"}], TOLD),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("api", "field", "value", "want"),
    [(api, *row) for api, rows in FIELDS.items() for row in rows],
    ids=lambda value: str(value)[:40] if isinstance(value, str | int | float) else "",
)
def test_what_becomes_of_a_field(api: str, field: str, value: Any, want: Any) -> None:
    module, base = BASE[api]
    told: list[str] = []
    if isinstance(want, str) and want not in (QUIET, TOLD):
        with pytest.raises(Refusal) as refused:
            module.parse({**base, field: value}, told.append)
        assert want in str(refused.value) and refused.value.status == 400 and refused.value.param
        return
    asked = module.parse({**base, field: value}, told.append)
    assert asked.ignored == ((field,) if want == TOLD else ())
    if isinstance(want, tuple):
        found, expected = want
        assert found(asked) == expected


@pytest.mark.parametrize("api", BASE)
def test_null_is_absent_everywhere(api: str) -> None:
    module, base = BASE[api]
    plain = module.parse(base, lambda word: None)
    nulls = {field: None for field, *_ in FIELDS[api] if field not in base}
    assert module.parse({**base, **nulls}, lambda word: None) == plain


@pytest.mark.parametrize("api", BASE)
def test_without_a_limit_there_is_none(api: str) -> None:
    module, base = BASE[api]
    assert module.parse(base, lambda word: None).max_tokens is None
