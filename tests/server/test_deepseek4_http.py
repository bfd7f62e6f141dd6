"""DeepSeek V4 over HTTP, in all APIs: DSML becomes tool calls, comes back byte for byte, a call that cannot be read is asked for
once more; on a scripted model with the real format, and on a tiny real one with its DSpark draft, whose calls a grammar holds."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import api_accumulate
import pytest
from scripted_server import TOOLS, Scripted, calls_of, chat_body, copying, events_of, plain, reply, serving
from server_process import ask, started
from tiny_deepseek4 import save_checkpoint

from ds4py.chat.formats.deepseek4_text import ASSISTANT, END_THINK, EOS, THINK, USER
from ds4py.chat.formats.dsml import MARK
from ds4py.cli import convert
from ds4py.server.results import Wire

PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}


def dsml(*invokes: str) -> list[str]:
    """Pieces of a block of calls, its mark a token of its own."""
    text = f"\n\n<{MARK}tool_calls>\n" + "".join(invokes) + f"</{MARK}tool_calls>"
    return [piece for part in text.split(MARK) for piece in (MARK, part)][1:]


def invoke(name: str, *parameters: tuple[str, str, str], gap: str = "\n") -> str:
    tags = (f'<{MARK}parameter name="{n}" string="{kind}">{value}</{MARK}parameter>{gap}' for n, kind, value in parameters)
    return f'<{MARK}invoke name="{name}">{gap}{"".join(tags)}</{MARK}invoke>\n'


# written as no program would write it again: gaps, an order and numbers of its own
ODD = dsml(invoke("f", ("b", "false", "[1,  2.50]"), ("a", "true", 'x < "y" & ｜z'), gap="\n\n"), "\n", invoke("g"))
BAD = dsml(invoke("f", ("b", "false", "[1, 2")))
SCRIPTS: dict[str, list[str]] = {
    "odd": ["pl", "an", "</think>", "Look.", *ODD],
    "bare": ["</think>", *ODD],
    # the reply goes on behind what is put there: the closing tag and two line breaks
    "stray": ["so", *dsml(invoke("f"))[:3], *dsml(invoke("f", ("a", "true", "x")))],
    "bad": ["pl", "an", "</think>", *BAD],
    "ever bad": ["</think>", *BAD],
    "done": ["</think>", "Done."],
}
ODD_CALLS = [("f", {"b": [1, 2.5], "a": 'x < "y" & ｜z'}), ("g", {})]
WITH_TOOLS: dict[str, Any] = {
    "chat": {"tools": TOOLS},
    "responses": {"tools": [{"type": "function", **tool["function"]} for tool in TOOLS]},
    "messages": {"tools": [{"name": t["function"]["name"], "input_schema": t["function"]["parameters"]} for t in TOOLS]},
}


@pytest.fixture(params=["plain", "drafts"])
def server(request: pytest.FixtureRequest) -> Iterator[Scripted]:
    """Plain, and with a drafter that copies what came before, whose blocks cross the ends of thinking and of markup."""
    again = reply("</think>", *dsml(invoke("f", ("a", "true", "better"))), when="could not be read", once=True)
    replies = [reply(*SCRIPTS["done"], when="result of f"), again]
    replies += [reply(*pieces, when=f"#{name}#") for name, pieces in SCRIPTS.items()]
    equip = copying() if request.param == "drafts" else plain
    with serving({"format": "deepseek4", "replies": replies}, equip=equip) as found:
        yield found


def body_of(api: str, text: str, **fields: Any) -> dict[str, Any]:
    asked = {"input": text} if api == "responses" else chat_body(text, **({"max_tokens": 500} if api == "messages" else {}))
    counted = {"stream_options": {"include_usage": True}} if api == "chat" and fields.get("stream") else {}
    return {**asked, **WITH_TOOLS[api], **counted, **fields}


def whole(api: str, data: bytes, streamed: bool) -> dict[str, Any]:
    """A response as one object, however it came."""
    if not streamed:
        found: dict[str, Any] = json.loads(data)
        return found
    wires = [Wire(event, made) for event, made in events_of(data)]
    if api != "chat":
        return {"responses": api_accumulate.responses, "messages": api_accumulate.messages}[api](wires)
    made = api_accumulate.chat(wires)
    calls = [{"id": call.pop("id"), "type": "function", "function": call} for call in made["calls"]]
    message = {"role": "assistant", "content": made["content"], "reasoning_content": made["reasoning"], "tool_calls": calls}
    return {"choices": [{"message": message, "finish_reason": made["finish"]}], "usage": made["usage"]}


def read(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def told(api: str, answer: dict[str, Any]) -> tuple[str, str, list[tuple[str, Any]]]:
    """(reasoning, text, calls)."""
    if api == "chat":
        message = answer["choices"][0]["message"]
        calls = [(c["function"]["name"], read(c["function"]["arguments"])) for c in message.get("tool_calls") or []]
        return message.get("reasoning_content") or "", message["content"] or "", calls
    if api == "messages":
        blocks = answer["content"]
        return (
            "".join(block["thinking"] for block in blocks if block["type"] == "thinking"),
            "".join(block["text"] for block in blocks if block["type"] == "text"),
            [(block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"],
        )
    items = answer["output"]
    return (
        "".join(part["text"] for item in items if item["type"] == "reasoning" for part in item["summary"]),
        "".join(part["text"] for item in items if item["type"] == "message" for part in item["content"]),
        [(item["name"], read(item["arguments"])) for item in items if item["type"] == "function_call"],
    )


def goes_on(api: str, body: dict[str, Any], answer: dict[str, Any], results: Sequence[str]) -> dict[str, Any]:
    """The next request: the turn as the client got it, and what its tools said."""
    if api == "chat":
        message = answer["choices"][0]["message"]
        told = [{"role": "tool", "tool_call_id": call["id"], "content": text} for call, text in
                zip(message["tool_calls"], results, strict=True)]  # fmt: skip
        return {**body, "messages": [*body["messages"], message, *told]}
    if api == "messages":
        ids = [block["id"] for block in answer["content"] if block["type"] == "tool_use"]
        blocks = [{"type": "tool_result", "tool_use_id": i, "content": text} for i, text in zip(ids, results, strict=True)]
        turns = [{"role": "assistant", "content": answer["content"]}, {"role": "user", "content": blocks}]
        return {**body, "messages": [*body["messages"], *turns]}
    calls = [item["call_id"] for item in answer["output"] if item["type"] == "function_call"]
    outputs = [{"type": "function_call_output", "call_id": i, "output": text} for i, text in zip(calls, results, strict=True)]
    first = body["input"] if isinstance(body["input"], list) else [{"role": "user", "content": body["input"]}]
    return {**body, "input": [*first, *answer["output"], *outputs]}


def cached(api: str, answer: dict[str, Any]) -> int:
    usage = answer["usage"]
    if api == "messages":
        return int(usage["cache_read_input_tokens"])
    return int(usage["prompt_tokens_details" if api == "chat" else "input_tokens_details"]["cached_tokens"])


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("api", PATHS)
def test_calls_are_read_and_come_back_as_they_were_drawn(server: Scripted, api: str, streamed: bool) -> None:
    """The second prompt is the first one, the reply, and the results; of the first two nothing is evaluated again."""
    body = body_of(api, "#odd#", stream=streamed)
    answer = whole(api, server.ask(PATHS[api], body).body, streamed)
    assert told(api, answer) == ("plan", "Look.", ODD_CALLS)
    (first,) = server.prompts
    assert first.endswith(f"{USER}#odd#{ASSISTANT}{THINK}") and f"<{MARK}tool_calls>" in first
    seen = server.script.model.n_rows
    after = server.ask(PATHS[api], goes_on(api, body, answer, ["result of f", "result of g"]))
    second = whole(api, after.body, streamed)
    assert told(api, second)[1] == "Done."
    drawn, results = "".join(SCRIPTS["odd"]), "<tool_result>result of f</tool_result>\n\n<tool_result>result of g</tool_result>"
    assert server.prompts[1] == f"{first}{drawn}{EOS}{USER}{results}{ASSISTANT}{THINK}"
    assert cached(api, second) >= len(first.encode()) // 2
    n_read = server.script.model.n_rows - seen  # with what was drafted wrongly
    assert n_read < len(results.encode()) + 60, "the prompt and the reply were not read again"


def test_a_turn_that_was_changed_is_written_as_the_client_says(server: Scripted) -> None:
    body = body_of("chat", "#bare#")
    answer = server.ask(PATHS["chat"], body).json
    answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] = '{"a": "other"}'
    server.ask(PATHS["chat"], goes_on("chat", body, answer, ["result of f", "result of g"]))
    canonical = f'<{MARK}invoke name="f">\n<{MARK}parameter name="a" string="true">other</{MARK}parameter>\n</{MARK}invoke>'
    assert canonical in server.prompts[1] and "2.50" not in server.prompts[1]


@pytest.mark.parametrize("api", PATHS)
def test_a_call_that_cannot_be_read_is_asked_for_once_more(server: Scripted, api: str) -> None:
    """With what was said, what is wrong and the schema in the prompt; nobody has seen the first try. The second is the last."""
    answer = server.ask(PATHS[api], body_of(api, "#bad#")).json
    assert told(api, answer)[1:] == ("", [("f", {"a": "better"})])
    first, second = server.prompts
    assert "[1, 2" in second and "Error: the call of f could not be read: " in second and second.endswith(f"{ASSISTANT}{THINK}")
    assert '"properties": {"a": {"type": "string"}}' in second.rpartition("could not be read")[2] and len(second) > len(first)
    assert any("a call could not be read; the model is asked once more" in line for line in server.lines)
    answer = server.ask(PATHS[api], body_of(api, "#ever bad#")).json
    _, text, calls = told(api, answer)
    assert len(server.prompts) == 4 and "(The call of f could not be read: " in text and len(calls) <= 1
    ends = {"chat": lambda: answer["choices"][0]["finish_reason"], "messages": lambda: answer["stop_reason"]}
    assert api == "responses" or ends[api]() in ("stop", "end_turn"), "a client that goes by this runs nothing half-written"


@pytest.mark.parametrize("api", PATHS)
def test_what_was_seen_is_not_tried_again(server: Scripted, api: str) -> None:
    answer = whole(api, server.ask(PATHS[api], body_of(api, "#bad#", stream=True)).body, True)
    assert "(The call of f could not be read: " in told(api, answer)[1] and len(server.prompts) == 1


@pytest.mark.parametrize("api", PATHS)
def test_a_call_begun_while_thinking_is_made_after_it(server: Scripted, api: str) -> None:
    """Thinking is closed before the call, and the model goes on from there."""
    answer = server.ask(PATHS[api], body_of(api, "#stray#")).json
    reasoning, text, calls = told(api, answer)
    assert (reasoning.strip(), text.strip(), calls) == ("so", "", [("f", {"a": "x"})])


def test_a_script_s_format_is_one_that_there_is(server: Scripted) -> None:
    from ds4py.errors import FormatError
    from ds4py.server.scripted import read_script

    with pytest.raises(FormatError, match="a script's format is chatml or deepseek4, not 'gemma'"):
        read_script({"format": "gemma", "replies": [{"pieces": calls_of(("f", "{}"))}]}, "x", 100)


# --- a tiny real model -------------------------------------------------------------------------------------------------------

PICK: dict[str, Any] = {"type": "object", "properties": {"n": {"type": "string", "enum": ["1", "2", "3"]}}, "required": ["n"]}
ONE: dict[str, Any] = {"tool_choice": "required", "parallel_tool_calls": False}
REQUIRED: dict[str, Any] = {
    "chat": {"tools": [{"type": "function", "function": {"name": "pick", "parameters": PICK}}], **ONE},
    "responses": {"tools": [{"type": "function", "name": "pick", "parameters": PICK}], **ONE},
    "messages": {
        "tools": [{"name": "pick", "input_schema": PICK}],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
    },
}


@pytest.fixture(scope="module")
def flash(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(model, DSpark support file), made by our converter from a tiny checkpoint."""
    made = tmp_path_factory.mktemp("http")
    small: dict[str, Any] = {"num_hidden_layers": 3, "compress_ratios": [0, 4, 128, 0, 0, 0], "n_routed_experts": 2,
                             "num_hash_layers": 1, "index_n_heads": 32,
                             "max_position_embeddings": 4096, "dspark_target_layer_ids": [0, 1, 2]}  # fmt: skip
    folder = save_checkpoint(made / "Tiny", draft="dspark", **small)
    out, draft = made / "m.gguf", made / "d.gguf"
    assert convert.main([str(folder.path), "-o", str(out), "--dspark-out", str(draft)]) == 0
    return out, draft


def conversation(url: str, api: str, **fields: Any) -> list[Any]:
    """A call, its result, and another call, which is streamed; a grammar holds both."""
    asked: dict[str, Any] = {"input": "pick"} if api == "responses" else {"messages": [{"role": "user", "content": "pick"}]}
    body = {"model": "m", **asked, **REQUIRED[api], **fields, **({"max_tokens": 300} if api == "messages" else {})}
    answer = ask(url + PATHS[api], body)
    again = {**goes_on(api, body, answer, ["ok"] * len(told(api, answer)[2])), "stream": True}
    request = urllib.request.Request(url + PATHS[api], json.dumps(again).encode())
    with urllib.request.urlopen(request, timeout=60) as response:
        return [told(api, answer), told(api, whole(api, response.read(), True))]


def test_a_real_model_makes_calls_and_drafts_change_none(flash: tuple[Path, Path], tmp_path: Path) -> None:
    """Letters are tokens for this model, so a call is some 150 of them."""
    model, draft = flash
    found: dict[str, list[Any]] = {}
    spark = ("--dspark", "--mtp-model", str(draft), "--dspark-confidence", "0", "--spec-depth", "fixed")
    for kind, options, apis in (("plain", (), [*PATHS]), ("spark", spark, ["chat"])):
        trace = tmp_path / f"{kind}.ndjson"
        words = ("-m", str(model), "--ctx", "4000", "-t", "2", "--nothink", "--trace", str(trace), *options)
        with started(*words) as (_, url, said):
            found[kind] = [made for api in apis for made in conversation(url, api, temperature=0)]
        assert ("draft-dspark with d.gguf" in "".join(said)) == (kind == "spark")
        lines = [json.loads(line) for line in trace.read_text().splitlines()]
        prompts, usage = ([line[key] for line in lines if key in line] for key in ("prompt", "usage"))
        assert len(prompts) == len(usage) == 2 * len(apis)
        for i in range(0, len(prompts), 2):
            first, second = prompts[i : i + 2]
            assert second.startswith(f"{first}\n\n<{MARK}tool_calls>\n")
            assert second.endswith(f"<tool_result>ok</tool_result>{ASSISTANT}{END_THINK}")
            assert usage[i + 1]["cached"] >= usage[i]["prompt"] + usage[i]["generated"] - 2, "the call came back as it was drawn"
    assert all(len(calls) == 1 and {made["n"] for _, made in calls} <= {"1", "2", "3"} for _, _, calls in found["plain"])
    assert {name for _, _, calls in found["plain"] for name, _ in calls} == {"pick"}
    assert found["spark"] == found["plain"][:2]
