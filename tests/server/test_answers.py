"""Whole answers on a scripted model: thinking, calls, what is mended, limits, grammars, and drafts that change nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import api_accumulate
import pytest
from scripted_server import TOOLS, Scripted, calls_of, chat_body, copying, events_of, plain, reply, serving

from ds4py.engine import SessionOptions
from ds4py.engine.accept import Opportunistic
from ds4py.protocols import SamplingParams
from ds4py.server.prompting import Defaults
from ds4py.server.results import Wire

THINK = ["<think>", "\n", "pl", "an", "\n", "</think>", "\n\n"]
TWO = calls_of(("f", '{"a": "x"}'), ("g", "{}"))


def _chars(piece: str) -> list[str]:
    return [piece] if piece.endswith("tool_call>") else list(piece)


SCRIPTS: dict[str, dict[str, Any]] = {
    "hello": reply("Hel", "lo"),
    "think": reply(*THINK, "Hel", "lo"),
    "one_tool": reply(*THINK, "Look", ":\n", *calls_of(("f", '{"a": "x"}'))),
    "two_tools": reply(*TWO[:6], "\n", *TWO[6:]),
    "emoji": reply("a", {"hex": "f09f"}, {"hex": "9880"}, "b"),
    "half": reply("a", {"hex": "f09f"}),
    "stray": reply("<think>", "so", "<tool_call>", '{"name"', ': "f"', *calls_of(("f", '{"a": "x"}'))),
    "silent": reply("<think>", "hm", "<|im_end|>", "!", "!", "An", "swer"),
    "endless": reply("ab ", "cd ", endless=True),
    "repeat": reply(*["one ", "two ", "three ", "four "] * 12),
    "fail": reply("so", " far", fail=True),
    "spelled": reply(*[char for piece in [*TWO[:6], "\n", *TWO[6:]] for char in _chars(piece)]),
    "cut": reply(*calls_of(("f", '{"a": "x'))[:4]),
    "slips": reply(*calls_of(("f", '{"a": "one\n\ttwo \\ud83d \\ud83d\\ude00 \\\\ud83d\\n"}'))),
    "json": reply(*'{"n": 5}'),
    "garbled": reply(*calls_of(("f", '{"a": x}'))),
    "one good": reply(*calls_of(("f", '{"a": x}')), "\n", *calls_of(("g", "{}"))),
}


@pytest.fixture(scope="module")
def server() -> Iterator[Scripted]:
    with serving({"replies": [{**made, "when": f"#{name}#"} for name, made in SCRIPTS.items()]}) as found:
        yield found


def chat(server: Scripted, name: str, **fields: Any) -> dict[str, Any]:
    return chat_of(server, f"#{name}#", **fields)


def chat_of(server: Scripted, text: str, **fields: Any) -> dict[str, Any]:
    answer = server.ask("/v1/chat/completions", chat_body(text, **fields))
    assert answer.status == 200, answer.body
    found: dict[str, Any] = answer.json["choices"][0] | {"usage": answer.json["usage"]}
    return found


def calls(choice: Mapping[str, Any]) -> list[tuple[str, Any]]:
    made = choice["message"].get("tool_calls", [])
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in made]


def test_thinking_is_apart_from_the_answer(server: Scripted) -> None:
    choice = chat(server, "think")
    assert choice["message"] == {"role": "assistant", "content": "Hello", "reasoning_content": "plan"}
    assert choice["usage"]["completion_tokens"] == 10 and choice["usage"]["completion_tokens_details"]["reasoning_tokens"] == 5
    content = server.ask("/v1/messages", chat_body("#think#")).json["content"]
    assert [block["type"] for block in content] == ["thinking", "text"]
    output = server.ask("/v1/responses", {"input": "#think#"}).json["output"]
    assert [item["type"] for item in output] == ["reasoning", "message"]


def test_thinking_can_be_switched_off_and_on(server: Scripted) -> None:
    chat(server, "hello", reasoning_effort="none")
    assert server.prompts[-1].endswith("<think>\n\n</think>\n\n")
    chat(server, "hello")
    assert server.prompts[-1].endswith("assistant\n")
    with serving({"replies": [SCRIPTS["hello"]]}, defaults=Defaults(SamplingParams(0.0), think=False)) as other:
        other.ask("/v1/chat/completions", chat_body())
        assert other.prompts[-1].endswith("</think>\n\n")
        other.ask("/v1/messages", chat_body(thinking={"type": "enabled", "budget_tokens": 1024}))
        assert other.prompts[-1].endswith("assistant\n")


def test_names_of_models_that_say_whether_to_think(server: Scripted) -> None:
    """Names of DeepSeek's and Z.ai's services, and the served one with the same endings; what a request says itself holds."""
    for model, closed in (
        ("deepseek-chat", True),
        ("deepseek-reasoner", False),
        ("glm-5.3-flash-nothink", True),
        ("zai/glm-5.2-no-think", True),
        ("qwen3.8-flash-next-reasoner", False),
        ("scripted-chat", True),
        ("scripted", False),
        ("some-chat", False),
    ):
        answer = server.ask("/v1/chat/completions", {**chat_body("#hello#"), "model": model})
        assert answer.json["model"] == model and server.prompts[-1].endswith("</think>\n\n") == closed
    for fields, closed in (({"think": True}, False), ({"reasoning_effort": "high"}, False), ({"thinking": False}, True)):
        server.ask("/v1/messages", {**chat_body("#hello#", **fields), "model": "deepseek-chat"})
        assert server.prompts[-1].endswith("</think>\n\n") == closed
    for name in ("deepseek-chat", "scripted-reasoner"):
        assert server.ask(f"/v1/models/{name}").json["id"] == name
    assert server.ask("/v1/models/some-chat").status == 404


def test_calls_with_ids_that_nobody_can_guess(server: Scripted) -> None:
    choice = chat(server, "two_tools", tools=TOOLS)
    assert calls(choice) == [("f", {"a": "x"}), ("g", {})] and choice["finish_reason"] == "tool_calls"
    ids = [call["id"] for call in choice["message"]["tool_calls"]]
    assert len(set(ids)) == 2 and all(len(made) == 37 and made.startswith("call_") for made in ids)
    assert choice["message"]["content"] is None
    blocks = server.ask("/v1/messages", chat_body("#two_tools#", tools=[{"name": "f"}, {"name": "g"}])).json["content"]
    assert [block["type"] for block in blocks] == ["tool_use"] * 2 and blocks[0]["id"].startswith("toolu_")
    one = chat(server, "two_tools", tools=TOOLS, parallel_tool_calls=False)
    assert calls(one) == [("f", {"a": "x"})] and one["finish_reason"] == "tool_calls"


def test_without_tools_markup_is_text(server: Scripted) -> None:
    choice = chat(server, "two_tools")
    assert choice["message"]["content"].startswith("<tool_call>") and choice["finish_reason"] == "stop"
    assert chat(server, "two_tools", tools=TOOLS, tool_choice="none")["message"]["content"].startswith("<tool_call>")


def test_a_call_inside_unclosed_thinking_is_made(server: Scripted) -> None:
    choice = chat(server, "stray", tools=TOOLS)
    assert calls(choice) == [("f", {"a": "x"})] and choice["message"]["reasoning_content"] == "so"
    assert choice["finish_reason"] == "tool_calls"


def test_an_answer_that_ends_while_thinking_goes_on(server: Scripted) -> None:
    choice = chat(server, "silent")
    assert (choice["message"]["reasoning_content"], choice["message"]["content"]) == ("hm", "Answer")
    cut = chat(server, "think", max_tokens=3)
    assert cut["message"]["reasoning_content"] == "pl" and cut["message"]["content"] == ""
    assert cut["finish_reason"] == "length"


def test_a_call_that_cannot_be_read_is_asked_for_again_while_nobody_has_seen_it() -> None:
    broken = reply(*THINK, *calls_of(("f", '{"a": "x'))[:4], when="user\nhi<|im_end|>\n<|im_start|>assistant\n", once=True)
    good = reply(*calls_of(("f", '{"a": "x"}')), when="could not be read: its arguments are cut off")
    with serving({"replies": [broken, good, SCRIPTS["cut"]]}) as server:
        choice = chat_of(server, "hi", tools=TOOLS)
        assert calls(choice) == [("f", {"a": "x"})] and choice["message"].get("reasoning_content") is None
        assert choice["usage"]["completion_tokens"] == 12 + 7 and "have this schema" in server.prompts[-1]
        assert choice["usage"]["prompt_tokens"] < len(server.prompts[-1])
        assert sum("asked once more" in line for line in server.lines) == 1
        for fields in ({"max_tokens": 4}, {"stop": ["zz"], "max_tokens": 4}):  # a limit cut it: nothing to repeat
            (call,) = chat_of(server, "cut", tools=TOOLS, **fields)["message"]["tool_calls"]
            assert call["function"]["arguments"] == '{"a": "x}'
        assert sum("asked once more" in line for line in server.lines) == 1


@pytest.mark.parametrize(
    ("name", "arguments", "fault"),
    [("cut", '{"a": "x}', "its arguments are cut off"), ("garbled", '{"a": x}', "its arguments are not a JSON object")],
)
def test_a_call_that_cannot_be_read_ends_in_words_and_not_as_a_call(
    server: Scripted, name: str, arguments: str, fault: str
) -> None:
    """The second try is as bad, or the reply is streamed: the call goes out as it was written, and nobody is told to make it."""
    words = f"(The call of f could not be read: {fault}.)"
    choice = chat(server, name, tools=TOOLS)
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["arguments"] == arguments and choice["finish_reason"] == "stop"
    assert choice["message"]["content"].strip() == words
    claude = chat_body(f"#{name}#", tools=[{"name": "f"}])
    message = server.ask("/v1/messages", claude).json
    assert message["content"][0]["input"] == {"_invalid_arguments": arguments} and message["stop_reason"] == "end_turn"
    assert message["content"][1]["text"].strip() == words
    codex = {"input": f"#{name}#", "tools": [{"type": "function", "name": "f"}]}
    whole = server.ask("/v1/responses", codex).json
    assert [item["type"] for item in whole["output"]] == ["function_call", "message"]
    assert whole["status"] == "completed" and words in whole["output"][1]["content"][0]["text"]
    streamed = [
        [Wire(*event) for event in events_of(server.ask(path, {**body, "stream": True}).body)]
        for path, body in (
            ("/v1/chat/completions", chat_body(f"#{name}#", tools=TOOLS)),
            ("/v1/messages", claude),
            ("/v1/responses", codex),
        )
    ]
    in_chat, in_messages, in_responses = api_accumulate.chat(streamed[0]), api_accumulate.messages(streamed[1]), streamed[2]
    assert in_chat["finish"] == "stop" and in_chat["content"].strip() == words
    assert in_chat["calls"][0]["arguments"] == arguments
    kinds = [block["type"] for block in in_messages["content"]]
    assert in_messages["stop_reason"] == "end_turn" and kinds == ["tool_use", "text"]
    (sent,) = in_messages["content"][0]["input"].values()
    assert arguments.startswith(sent)  # as far as it can become JSON
    assert api_accumulate.responses(in_responses)["output"][1]["type"] == "message"


def test_slips_whose_meaning_is_plain_are_put_right(server: Scripted) -> None:
    """Line breaks that stand in strings as they are, and halves of characters: strict parsers take neither (FC-37)."""
    want = "one\n\ttwo \ufffd \U0001f600 \\ud83d\n"
    assert calls(chat(server, "slips", tools=TOOLS)) == [("f", {"a": want})]
    claude = chat_body("#slips#", tools=[{"name": "f"}])
    assert server.ask("/v1/messages", claude).json["content"][0]["input"] == {"a": want}
    wires = [Wire(*event) for event in events_of(server.ask("/v1/messages", {**claude, "stream": True}).body)]
    made = api_accumulate.messages(wires)
    assert made["content"][0]["input"] == {"a": want} and made["stop_reason"] == "tool_use"


def test_a_call_that_can_be_read_is_made_whatever_stands_beside_it(server: Scripted) -> None:
    choice = chat(server, "one good", tools=TOOLS, stream=False)
    assert choice["finish_reason"] == "tool_calls" and len(choice["message"]["tool_calls"]) == 2
    assert "could not be read" in choice["message"]["content"]


def test_broken_characters_and_limits(server: Scripted) -> None:
    assert chat(server, "emoji")["message"]["content"] == "a\U0001f600b"
    assert chat(server, "half")["message"]["content"] == "a\ufffd"
    for n in range(1, 6):
        choice = chat(server, "endless", max_tokens=n)
        assert choice["usage"]["completion_tokens"] == n and choice["finish_reason"] == "length"
    stopped = chat(server, "endless", stop=["d a"], max_tokens=50)
    assert stopped["message"]["content"] == "ab c" and stopped["finish_reason"] == "stop"
    message = server.ask("/v1/messages", chat_body("#endless#", stop_sequences=["zz", "cd"], max_tokens=9)).json
    assert (message["content"][0]["text"], message["stop_reason"], message["stop_sequence"]) == ("ab ", "stop_sequence", "cd")


def test_without_a_limit_the_context_is_the_limit() -> None:
    with serving({"replies": [SCRIPTS["endless"]]}, n_ctx=64) as server:
        choice = chat(server, "x")
        usage = choice["usage"]
        assert usage["total_tokens"] == 64 and choice["finish_reason"] == "length"
        status = server.ask("/v1/responses", {"input": "x"}).json
        assert status["status"] == "incomplete" and status["incomplete_details"] == {"reason": "max_output_tokens"}


def test_broken_logits_end_one_request(server: Scripted) -> None:
    answer = server.ask("/v1/chat/completions", chat_body("#fail#"))
    assert answer.status == 500 and "position" in answer.json["error"]["message"]
    events = events_of(server.ask("/v1/chat/completions", chat_body("#fail#", stream=True)).body)
    assert "error" in events[-1][1] and "".join(e[1]["choices"][0]["delta"].get("content", "") for e in events[:-1]) == "so far"
    named = events_of(server.ask("/v1/messages", chat_body("#fail#", stream=True)).body)
    assert named[-1][0] == "error" and named[-1][1]["error"]["type"] == "api_error"
    failed = events_of(server.ask("/v1/responses", {"input": "#fail#", "stream": True}).body)
    assert failed[-1][0] == "response.failed"
    assert chat(server, "hello")["message"]["content"] == "Hello"
    server.until(lambda: server.running == 0)


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}


def test_grammars_hold_and_thinking_gives_way(server: Scripted) -> None:
    format = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    choice = chat(server, "think", response_format=format, max_tokens=40)
    assert server.prompts[-1].endswith("</think>\n\n")  # no mask could know whether it will think
    assert choice["message"]["content"].startswith('{') and "plan" not in choice["message"]["content"]
    forced = chat(server, "hello", tools=TOOLS, tool_choice={"type": "function", "function": {"name": "g"}}, max_tokens=60)
    (call,) = forced["message"]["tool_calls"]
    assert call["function"]["name"] == "g"
    # where a grammar leaves no choice, a mask offers the tokens that the text would be cut into: here, single characters
    named = chat(server, "spelled", tools=TOOLS, tool_choice={"type": "function", "function": {"name": "f"}})
    assert calls(named) == [("f", {"a": "x"})]  # one tool, one call
    any_of_them = chat(server, "spelled", tools=TOOLS, tool_choice="required")
    assert [name for name, _ in calls(any_of_them)] == ["f", "g"]


@pytest.mark.parametrize("tokens", [1, 2, 3, 4])
def test_a_limit_of_thinking_closes_it_there_and_the_answer_follows(tokens: int) -> None:
    """The scripted model thinks on for ever; behind the closing tag, which was put there, the script goes on where it is."""
    script = {"replies": [reply("<think>", *[f"w{i} " for i in range(4)], "<x>", "An", "swer", endless=True)]}
    answers = set()
    for equip in (None, copying()):
        with serving(script, **({} if equip is None else {"equip": equip})) as server:
            choice = chat_of(server, "x", thinking={"type": "enabled", "budget_tokens": tokens}, max_tokens=20)
            details = choice["usage"]["completion_tokens_details"]
            assert choice["message"]["reasoning_content"].split() == [f"w{i}" for i in range(tokens)]
            assert details["reasoning_tokens"] == tokens and choice["usage"]["completion_tokens"] == 20
            answers.add(choice["message"]["content"])
    assert len(answers) == 1 and answers.pop()


def test_words_of_the_assistant_are_continued(server: Scripted) -> None:
    history = [{"role": "user", "content": "#hello#"}, {"role": "assistant", "content": "Say <|im_end|>: "}]
    for path in ("/v1/chat/completions", "/v1/messages"):
        assert server.ask(path, {"messages": history}).status == 200
        assert server.prompts[-1].endswith("assistant\n<think>\n\n</think>\n\nSay <|im_end|>: ")
    server.ask("/v1/responses", {"input": history})
    assert server.prompts[-1].endswith("Say <|im_end|>: ")


def test_a_format_of_the_answer_leaves_tools_callable(server: Scripted) -> None:
    """openai-agents sends both with every request of a typed agent."""
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    called = chat(server, "spelled", tools=TOOLS, response_format=form)
    assert [name for name, _ in calls(called)] == ["f", "g"]
    answered = chat(server, "json", tools=TOOLS, response_format=form)
    assert json.loads(answered["message"]["content"]) == {"n": 5} and not calls(answered)
    forced = chat(server, "hello", tools=TOOLS, response_format=form, max_tokens=40)["message"]
    assert forced.get("tool_calls") or forced["content"].startswith("{")  # words are neither
    must = chat(server, "json", tools=TOOLS, response_format=form, tool_choice="required", max_tokens=60)
    assert must["message"]["tool_calls"]
    refused = server.ask("/v1/chat/completions", chat_body(tools=TOOLS, grammar="root ::= 'a'"))
    assert refused.status == 400 and "cannot both be obeyed" in refused.json["error"]["message"]
    bad = {"type": "json_schema", "json_schema": {"schema": {"type": "nonsense"}}}
    said = server.ask("/v1/chat/completions", chat_body(tools=TOOLS, response_format=bad)).json["error"]["message"]
    assert "JSON schema" in said


@pytest.mark.parametrize("fields", [{"think": True}, {"thinking": {"type": "enabled", "budget_tokens": 9}}])
def test_a_format_holds_behind_thinking_that_was_asked_for(server: Scripted, fields: dict[str, Any]) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    for equip in (plain, copying()):
        script = {"replies": [reply("pl", "an", "</think>", *'{"n": 5}')]}
        with serving(script, equip=equip) as thinking:
            choice = chat_of(thinking, "x", response_format=form, **fields)
            assert thinking.prompts[-1].endswith("assistant\n<think>\n")
            assert choice["message"]["reasoning_content"] == "plan" and json.loads(choice["message"]["content"]) == {"n": 5}
            must = chat_of(thinking, "x", tools=TOOLS, tool_choice="required", max_tokens=60, **fields)["message"]
            assert must["reasoning_content"] == "plan" and must["tool_calls"]


_CHOICES = {"type": "object", "properties": {"a": {"enum": ["x", "yy"]}}, "required": ["a"], "additionalProperties": False}
STRICT = [{"type": "function", "function": {"name": name, "strict": True, "parameters": _CHOICES}} for name in ("f", "g")]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_calls_of_strict_tools_obey_their_schemas_from_their_first_token_on(temperature: float) -> None:
    """The script writes a number where the schema wants a string, and ends in the middle; the text before the call is free."""
    broken = ["<tool_call>", *'\n{"name": "f", "arguments": {"a": 5'] + ["<|im_end|>"]
    script = {"replies": [reply("<think>", "so", "</think>", "Look", ": {", *broken, sharp=14.0)]}
    flat = [{"type": "function", **tool["function"]} for tool in STRICT]
    claude = [{"name": "f", "strict": True, "input_schema": STRICT[0]["function"]["parameters"]}]
    found = []
    for equip in (plain, copying()):
        with serving(script, equip=equip, defaults=Defaults()) as server:
            fields = {"temperature": temperature, "seed": 4, "max_tokens": 600}
            choice = chat_of(server, "x", tools=STRICT, **fields)
            assert choice["message"]["content"] == "Look: {" and choice["message"]["reasoning_content"] == "so"
            (call, *_) = choice["message"]["tool_calls"]
            assert json.loads(call["function"]["arguments"])["a"] in ("x", "yy") and call["function"]["name"] in "fg"
            found.append([(c["function"]["name"], c["function"]["arguments"]) for c in choice["message"]["tool_calls"]])
            codex = server.ask("/v1/responses", {"input": "x", "tools": flat, "temperature": temperature, "seed": 4}).json
            assert any(item["type"] == "function_call" and json.loads(item["arguments"]) is not None for item in codex["output"])
            blocks = server.ask("/v1/messages", chat_body(tools=claude, **fields)).json["content"]
            assert "_invalid_arguments" not in next(block for block in blocks if block["type"] == "tool_use")["input"]
            loose = chat_of(server, "x", tools=TOOLS, **fields)["message"]["tool_calls"][0]["function"]["arguments"]
            assert loose.startswith('{"a": 5')
    assert found[0] == found[1]


def test_strict_tools_with_a_schema_that_cannot_be_obeyed_are_served_as_others() -> None:
    odd = {"type": "object", "properties": {"a": {"type": "nonsense"}}}
    tools = [{"type": "function", "function": {"name": "f", "strict": True, "parameters": odd}}]
    with serving({"replies": [SCRIPTS["one_tool"]]}, defaults=Defaults(SamplingParams(0.0))) as server:
        assert calls(chat_of(server, "x", tools=tools)) == [("f", {"a": "x"})]


def everything(server: Scripted, temperature: float) -> list[Any]:
    """All scripts through all APIs, streaming and not, without what is random or a time."""
    found: list[Any] = []
    fields = {"tools": TOOLS, "temperature": temperature, "seed": 3, "max_tokens": 80}
    for name in SCRIPTS:
        for stream in (False, True):
            answer = server.ask("/v1/chat/completions", chat_body(f"#{name}#", stream=stream, **fields))
            parts = [data for _, data in events_of(answer.body)] if stream else [answer.json]
            for part in parts:
                if isinstance(part, dict):
                    for key in ("id", "created", "timings"):
                        part.pop(key, None)
                    part.get("usage", {}).pop("prompt_tokens_details", None)
            found.append((name, stream, json.loads(_no_ids(json.dumps(parts)))))
    return found


def _no_ids(text: str) -> str:
    return re.sub(r"call_[0-9a-f]{32}", "call_X", text)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafts_change_no_byte(temperature: float) -> None:
    script = {"replies": [{**made, "when": f"#{name}#", "sharp": 9.0} for name, made in SCRIPTS.items()]}
    with serving(script) as plain, serving(script, equip=copying()) as drafting:
        want, got = everything(plain, temperature), everything(drafting, temperature)
        whole = [one for one in want if not one[1]]
        assert [one for one in got if not one[1]] == whole
        # a pass may commit several tokens, whose text then comes in one chunk: the joined text is what must be equal
        for one, other in zip(want, got, strict=True):
            assert _joined(one) == _joined(other)
        metrics = drafting.ask("/metrics").body.decode()
        plain_lines = [line.split() for line in metrics.splitlines() if line.startswith("ds4_") and "{" not in line]
        counts = {name: float(value) for name, value in plain_lines}
        drafted, accepted = counts["ds4_drafted_tokens_total"], counts["ds4_accepted_tokens_total"]
        assert accepted > 50 and drafted - accepted > 50
        assert counts["ds4_rows_total"] == pytest.approx(drafted + counts["ds4_passes_total"], abs=20)


def _joined(one: Any) -> Any:
    name, stream, parts = one
    if not stream:
        return one
    texts = ["", "", ""]
    finish = None
    for part in parts:
        for choice in part["choices"] if isinstance(part, dict) and "choices" in part else ():
            delta = choice["delta"]
            texts[0] += delta.get("content") or ""
            texts[1] += delta.get("reasoning_content") or ""
            texts[2] += json.dumps([call["function"] for call in delta.get("tool_calls", ())])
            finish = choice["finish_reason"] or finish
    merged = texts[2].replace("[]", "").replace("][", ", ")
    return name, texts[0], texts[1], "".join(item.get("arguments", "") for item in json.loads(merged or "[]")), finish


def test_opportunistic_drafts_stay_within_one_answer() -> None:
    """Where drafts decide the text it must not depend on what was asked before: each answer has a drafter of its own."""
    script = {"replies": [{**SCRIPTS["repeat"], "sharp": 6.0}]}
    with serving(script, equip=copying(Opportunistic()), defaults=Defaults(SamplingParams(1.0))) as server:
        object.__setattr__(server.worker.served, "drafts_decide", lambda options: True)
        first, *others = [chat(server, "x", seed=5, max_tokens=60)["message"]["content"] for _ in range(3)]
        assert others == [first, first]


def test_a_drafter_that_is_left_out_of_hot_answers_comes_back_to_cold_ones() -> None:
    """A draft model that is too dear above temperature 0 is not asked there; the next request at 0 must draft again."""
    usual = copying()

    def equip(options: SessionOptions) -> SessionOptions:
        return options if options.params.temperature > 0 else usual(options)

    with serving({"replies": [{**SCRIPTS["repeat"], "sharp": 9.0}]}, equip=equip) as server:
        object.__setattr__(server.worker.served, "drafts_decide", lambda options: options.params.temperature > 0)
        drafted = [
            server.ask("/v1/chat/completions", chat_body("x", temperature=t, max_tokens=60)).json["timings"].get("draft_n", 0)
            for t in (0.0, 1.0, 0.0, 0.0)
        ]
    assert drafted[1] == 0 and min(drafted[0], *drafted[2:]) > 0, drafted


def test_what_drafts_did_is_in_the_log_and_in_llama_cpps_metrics() -> None:
    with serving({"replies": [{**SCRIPTS["repeat"], "sharp": 9.0}]}, equip=copying()) as server:
        assert "spec_decode_num_accepted_tokens_per_pos_total{" not in server.ask("/metrics").body.decode()
        timings = server.ask("/v1/chat/completions", chat_body("x", temperature=0, max_tokens=60)).json["timings"]
        text = server.ask("/metrics").body.decode()
        server.until(lambda: server.running == 0)
    found = dict(re.findall(r"^llamacpp:spec_decode_num_(\S+) (\d+)$", text, re.MULTILINE))
    assert int(found["draft_tokens_total"]) == timings["draft_n"] > 0
    accepted = timings["draft_n_accepted"]
    at = [int(n) for name, n in found.items() if name.startswith("accepted_tokens_per_pos")]
    assert int(found["accepted_tokens_total"]) == accepted == sum(at) and at == sorted(at, reverse=True)
    assert at[0] <= int(found["drafts_total"])
    assert any(f"draft acceptance = {accepted / timings['draft_n']:.5f} (" in line for line in server.lines), server.lines


def test_a_request_may_limit_drafts_and_the_next_one_has_them_again() -> None:
    """`speculative`, which llama.cpp's users ask for: the same text, no draft or short ones, and nothing of it stays."""
    limits: list[dict[str, Any]] = [
        {},
        {"speculative": False},
        {},
        {"speculative": {"n_max": 2}},
        {"speculative.n_max": 0},
        {"speculative": True},
    ]
    with serving({"replies": [{**SCRIPTS["repeat"], "sharp": 9.0}]}, equip=copying()) as server:
        bodies = [chat_body("x", temperature=0, max_tokens=60, **more) for more in limits]
        answers = [server.ask("/v1/chat/completions", body).json for body in bodies]
        wrong = server.ask("/v1/messages", {**chat_body("x"), "max_tokens": 9, "speculative": {"n_max": -1}})
        assert wrong.status == 400 and "speculative.n_max must be a whole number" in wrong.json["error"]["message"]
    assert len({answer["choices"][0]["message"]["content"] for answer in answers}) == 1
    drafted = [answer["timings"].get("draft_n", 0) for answer in answers]
    assert drafted[1] == drafted[4] == 0 and drafted[0] > 0 and drafted[2] > 0 and drafted[5] > 0
    assert drafted[3] > 0
    told = [line for line in server.lines if "speculative" in line and "must be" not in line]
    assert not told, "it is not among the fields that are ignored"
