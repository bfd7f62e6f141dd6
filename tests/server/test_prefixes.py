"""What stays warm: conversations under client noise, several at once, calls that come back (FC-41, FC-43)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_server import TOOLS, Scripted, calls_of, chat_body, reply, serving

from ds4py.chat import Message, open_format
from ds4py.server.scripted import read_script
from ds4py.server.spelling import continued, spell_prompt, spell_tokens
from ds4py.server.volatile import settled
from ds4py.tokenizer import PromptText

SYSTEM = "You are careful. " * 200


def ask(server: Scripted, messages: list[dict[str, Any]], **fields: Any) -> tuple[dict[str, Any], int, int]:
    """(the reply's message, tokens of the prompt, of them cached)."""
    answer = server.ask("/v1/chat/completions", {"model": "m", "messages": messages, **fields})
    assert answer.status == 200, answer.body
    usage = answer.json["usage"]
    return answer.json["choices"][0]["message"], usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def system(text: str = SYSTEM) -> dict[str, Any]:
    return {"role": "system", "content": text}


def test_a_reply_that_comes_back_is_not_read_again() -> None:
    """It is cut into other tokens when it is read, so equal tokens would end at its first one."""
    with serving({"replies": [reply("Hel", "lo", " there")]}) as server:
        reply1, n_first, _ = ask(server, [system(), user("a")])
        history = [system(), user("a"), {"role": "assistant", "content": reply1["content"]}, user("b")]
        _, n, cached = ask(server, history)
        assert n_first < cached and n - cached < 60


def test_calls_come_back_byte_for_byte() -> None:
    odd = ["Look", ":\n\n", "<tool_call>", '{"arguments":', '{"a":  "x"}', ',"name":"f"}', "</tool_call>"]
    with serving({"replies": [reply(*odd, when="user\na<|im_end|>\n<|im_start|>assistant\n", once=True), reply("ok")]}) as server:
        message, n_first, _ = ask(server, [system(), user("a")], tools=TOOLS)
        (call,) = message["tool_calls"]
        assert call["function"] == {"name": "f", "arguments": '{"a":  "x"}'}
        call["function"]["arguments"] = '{"a":"x"}'  # a client writes it in its own way
        result = {"role": "tool", "tool_call_id": call["id"], "content": "done"}
        _, n, cached = ask(server, [system(), user("a"), message, result], tools=TOOLS)
        assert "".join(odd) in server.prompts[-1] and cached > n_first and n - cached < 90
        call["function"]["arguments"] = '{"a":"y"}'  # changed: what the client says holds
        ask(server, [system(), user("a"), message, result], tools=TOOLS)
        assert '{"name": "f", "arguments": {"a": "y"}}' in server.prompts[-1]
        call["id"] = "call_" + "0" * 32
        ask(server, [system(), user("a"), message, result], tools=TOOLS)
        assert "".join(odd) not in server.prompts[-1]


def test_a_title_request_in_between_costs_nothing() -> None:
    with serving({"replies": [reply("ok")]}) as server:
        main = [system(), user("a" * 800)]
        ask(server, main)
        title = [system("Make a title. " * 40), user("t" * 400)]
        ask(server, title)
        _, n, cached = ask(server, [*main, {"role": "assistant", "content": "ok"}, user("b")])
        assert n - cached < 60
        _, n, cached = ask(server, title)
        assert cached == n - 1 and server.worker.gauges()["ds4_sessions"] == 2


def test_a_side_question_takes_the_shared_beginning_along() -> None:
    with serving({"replies": [reply("ok")]}) as server:
        ask(server, [system(), user("a" * 2000)])
        _, n, cached = ask(server, [system(), user("b" * 2000)])
        assert len(SYSTEM) < cached < n - 1900  # the system text, from a twin
        _, n, cached = ask(server, [system(), user("a" * 2000)])
        assert cached == n - 1  # the first conversation is whole


def test_the_billing_line_and_a_date_cost_nothing_that_stays_the_same() -> None:
    with serving({"replies": [reply("ok")]}) as server:
        for i, line in enumerate(("x-anthropic-billing-header: v=1; 17ab", "x-anthropic-billing-header: v=2; 99xx")):
            body = {**chat_body(), "system": [{"type": "text", "text": line}, {"type": "text", "text": SYSTEM}]}
            usage = server.ask("/v1/messages", body).json["usage"]
            assert i == 0 or usage["input_tokens"] == 1
        for i, day in enumerate((29, 30)):
            head = f"You are Agent.\nToday's date: 2026-11-{day}\n{SYSTEM}"
            _, n, cached = ask(server, [system(head), user("hi")])
            assert f"user\nToday's date: 2026-11-{day}\n\nhi" in server.prompts[-1]
            assert i == 0 or n - cached < 60


def test_a_small_budget_keeps_one_conversation() -> None:
    with serving({"replies": [reply("ok")]}, cache_bytes=10_000) as server:  # 8 bytes a token here
        for text in ("a", "b", "c"):
            ask(server, [user(text * 900)])
        assert server.worker.gauges()["ds4_session_bytes"] <= 10_000 and server.worker.gauges()["ds4_sessions"] == 1
    with serving({"replies": [reply("ok")]}, cache_bytes=24_000) as server:
        for text in ("a", "b", "c", "d", "a"):
            ask(server, [user(text * 900)])
        assert server.worker.gauges()["ds4_sessions"] == 3


def test_many_kept_conversations_do_not_delay_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is compared with the prompt, but only the one that is taken has the prompt's rest cut into tokens."""
    with serving({"replies": [reply("ok")]}) as server:
        for i in range(6):
            ask(server, [system(f"Agent {i}. {SYSTEM}"), user("a")])
        n_encoded: list[int] = []
        prefixes = server.worker._prefixes

        class Counting:
            def __init__(self, tokenizer: Any) -> None:
                self._inner = tokenizer

            def __getattr__(self, name: str) -> Any:
                return getattr(self._inner, name)

            def encode_prompt(self, prompt: PromptText, **options: Any) -> Any:
                n_encoded.append(len(str(prompt)))
                return self._inner.encode_prompt(prompt, **options)

        monkeypatch.setattr(prefixes, "_tokenizer", Counting(prefixes._tokenizer))
        _, n, cached = ask(server, [system(f"Agent 3. {SYSTEM}"), user("a"), {"role": "assistant", "content": "ok"}, user("b")])
        assert n - cached < 60 and server.worker.gauges()["ds4_sessions"] == 6
        assert len(n_encoded) == 1 and n_encoded[0] < 100, n_encoded


def test_edited_and_shortened_prompts_answer_as_if_cold() -> None:
    prompts = ["one two three", "one 2wo three", "one", "one two three four", "one two three"]
    with serving({"replies": [reply("ok", sharp=3.0)]}) as warm:
        got = [ask(warm, [user(text)], temperature=1.5, seed=4, max_tokens=20)[0]["content"] for text in prompts]
    for text, want in zip(prompts, got, strict=True):
        with serving({"replies": [reply("ok", sharp=3.0)]}) as cold:
            message, _, cached = ask(cold, [user(text)], temperature=1.5, seed=4, max_tokens=20)
            assert message["content"] == want and cached == 0


def test_the_three_apis_share_one_prompt() -> None:
    with serving({"replies": [reply("ok")]}) as server:
        server.ask("/v1/chat/completions", {"messages": [system("S"), user("hi")], "tools": TOOLS})
        flat = [{"type": "function", **tool["function"]} for tool in TOOLS]
        server.ask("/v1/responses", {"instructions": "S", "input": "hi", "tools": flat})
        claude = [{"name": tool["function"]["name"], "input_schema": tool["function"]["parameters"]} for tool in TOOLS]
        server.ask("/v1/messages", {"system": "S", "messages": [user("hi")], "tools": claude})
        assert len(set(server.prompts)) == 1


def test_the_three_apis_share_one_prompt_in_the_middle_of_a_turn_with_tools() -> None:
    """FC-19: reasoning that comes back with calls is rendered alike, in whatever form it comes; after a new question it goes."""
    function = {"name": "f", "arguments": '{"a": "x"}'}
    call = {"id": "call_1", "type": "function", "function": function}
    use = {"type": "tool_use", "id": "call_1", "name": "f", "input": {"a": "x"}}
    flat = [{"type": "function", **tool["function"]} for tool in TOOLS]
    claude = [{"name": tool["function"]["name"], "input_schema": tool["function"]["parameters"]} for tool in TOOLS]
    for more in ([], [user("and now?")]):
        with serving({"replies": [reply("ok")]}) as server:
            result = {"role": "tool", "tool_call_id": "call_1", "content": "done"}
            for field in ("reasoning_content", "reasoning"):
                said = {"role": "assistant", "content": "Look.", field: "plan", "tool_calls": [call]}
                server.ask("/v1/chat/completions", {"messages": [user("do"), said, result, *more], "tools": TOOLS})
            thought = {"type": "thinking", "thinking": "plan", "signature": "s"}
            blocks = [thought, {"type": "text", "text": "Look."}, use]
            results = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": "done"}]}
            server.ask(
                "/v1/messages",
                {"messages": [user("do"), {"role": "assistant", "content": blocks}, results, *more], "tools": claude},
            )
            items = [
                user("do"),
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "plan"}], "content": None},
                {"role": "assistant", "content": [{"type": "output_text", "text": "Look."}]},
                {"type": "function_call", "call_id": "call_1", **function},
                {"type": "function_call_output", "call_id": "call_1", "output": "done"},
                *more,
            ]
            server.ask("/v1/responses", {"input": items, "tools": flat})
            assert len(server.prompts) == 4 and len(set(server.prompts)) == 1
            assert ("plan" in server.prompts[0]) == (not more)


def test_dates_move_only_from_the_head_of_long_texts() -> None:
    def moved(text: str) -> str:
        return settled([Message("system", text), Message("user", "u")])[1].content

    assert moved(f"Current time: 12:30\n{SYSTEM}") == "Current time: 12:30\n\nu"
    assert moved(f"Current date: Nov 30, 2026\n\n{SYSTEM}").startswith("Current date")
    for text in ("Today is 2026-11-30", f"1\n2\n3\n4\nToday is 2026-11-30\n{SYSTEM}", f"Version 2026-11-30 of it\n{SYSTEM}"):
        assert moved(text) == "u"
    long_line = f"Today is 2026-11-30 and {SYSTEM}"
    assert moved(long_line) == "u"


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_the_tokens_of_a_continued_session_spell_the_prompt(data: st.DataObject) -> None:
    script = read_script({"replies": [reply("Hel", "lo", "<think>", "ab")]}, "test", 4096)
    tokenizer = script.tokenizer
    words = ["Hel", "lo", "a", "b", "ab", "<think>", "\u00e9", "<|im_end|>"]
    ids = {tokenizer.token_text(i): i for i in range(tokenizer.vocab_size)}

    def segments(strategy: st.SearchStrategy[list[str]]) -> PromptText:
        parts = data.draw(strategy)
        return PromptText(tuple((part, part in tokenizer.vocab.markers and data.draw(st.booleans())) for part in parts))

    some = st.lists(st.sampled_from(words), min_size=1, max_size=8)
    drawn = [ids[word] for word in data.draw(some) if word in ids]
    session = [*tokenizer.encode_prompt(segments(some)), *drawn]
    more = segments(some)
    lead = [(tokenizer.decode([token], special=True), token in tokenizer.vocab.markers.values()) for token in session]
    prompt = PromptText((*_merged(lead[: data.draw(st.integers(0, len(lead)))]), *more.segments))
    canonical = tokenizer.encode_prompt(prompt)
    n, made = continued(
        tokenizer, session, spell_tokens(tokenizer, session), prompt, spell_prompt(tokenizer, prompt, canonical[0])
    )
    assert made[:n] == session[:n]
    if n:
        assert spell_tokens(tokenizer, made).data == spell_tokens(tokenizer, canonical).data


def _merged(parts: list[tuple[str, bool]]) -> list[tuple[str, bool]]:
    out: list[tuple[str, bool]] = []
    for text, is_control in parts:
        if out and not is_control and not out[-1][1]:
            out[-1] = (out[-1][0] + text, False)
        else:
            out.append((text, is_control))
    return out


def test_a_format_without_tools_shares_prompts_too() -> None:
    plain = {"template": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
             "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"}  # fmt: skip
    made: Mapping[str, Any] = {**plain, "replies": [reply(*calls_of(("f", '{"a": "x"}')), once=True), reply("ok")]}
    chat = open_format(read_script(made, "test", 64).file, read_script(made, "test", 64).tokenizer)
    assert chat.name == "template"
    with serving(made) as server:
        message, n_first, _ = ask(server, [system(), user("a")], tools=TOOLS)
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "done"}
        _, n, cached = ask(server, [system(), user("a"), message, result], tools=TOOLS)
        assert cached > n_first and "<tool_response>\ndone" in server.prompts[-1]
