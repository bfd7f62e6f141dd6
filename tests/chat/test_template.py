"""Templates mean here what they mean in the library they are written for, and strangers' programs stay in the sandbox."""

from __future__ import annotations

from typing import Any

import pytest

from ds4py.chat import ChatTemplate
from ds4py.errors import FormatError, UsageError

MESSAGES = [
    {"role": "system", "content": "S"},
    {"role": "user", "content": " hé <b>&'\"\u2028 "},
    {"role": "assistant", "content": "A", "tool_calls": [{"function": {"name": "f", "arguments": {"x": "é", "a": [1, None]}}}]},
]
SOURCES = [
    "{% for m in messages %}\n    {{ m.role }}: {{ m.content }}\n{% endfor %}\n",
    "{%- for m in messages -%}\n  {%- if m.role == 'system' %}{% continue %}{% endif %}\n  [{{ m['content'] | trim }}]\n"
    "{%- if loop.index == 2 %}{% break %}{% endif %}{%- endfor %}",
    "{{ messages | tojson }}{{ messages[1].content | tojson }}",
    "{{ messages[2].tool_calls[0].function.arguments | tojson(indent=2) }} {{ messages[1].content | tojson(ensure_ascii=True) }}",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}"
    "{{ undefined_thing }}{{ bos_token }}",
    "{% generation %}{{ messages[2].content }}{% endgeneration %}x",
    "{% macro f(m) %}<{{ m.role }}>{% endmacro %}{% for m in messages[1:] %}{{ f(m) }}{% endfor %}"
    "{{ messages[::-1] | map(attribute='role') | join(',') }}",
    "{% if add_generation_prompt and tools is none %}G{% endif %}{{ messages[1].content.split('<b>')[-1].lstrip('&') }}",
    "  {% if true %}\n  kept\n  {% endif %}\n\nend\n\n",
]


@pytest.mark.parametrize("source", SOURCES)
def test_same_text_as_transformers(source: str) -> None:
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    theirs, _ = utils.render_jinja_template([MESSAGES], chat_template=source, add_generation_prompt=True, bos_token="<s>")
    ours = ChatTemplate(source, "test").render(messages=MESSAGES, add_generation_prompt=True, tools=None, bos_token="<s>")
    assert ours == theirs[0]


@pytest.mark.parametrize("source", ["{% for %}", "{{ a", "{% if x %}", "{% nope %}", "{{ x | no_such_filter }}", "{% endfor %}"])
def test_broken_templates_are_refused_when_made(source: str) -> None:
    with pytest.raises(FormatError, match="^f.gguf: the template is broken in line 1: "):
        ChatTemplate(source, "f.gguf: the template")


def test_a_refusal_of_the_template_is_passed_on() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", "t")
    with pytest.raises(UsageError, match="refuses these messages: roles must alternate"):
        template.render()


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[9].content }}",
        "{{ 1 / 0 }}",
        "{{ 'a' + 1 }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ (messages | attr('__class__'))('x') }}",
        "{{ raise_exception.__globals__ }}",
        "{% for i in range(10**9) %}x{% endfor %}",
    ],
)
def test_failures_and_escapes_become_one_sentence(source: str) -> None:
    template = ChatTemplate(source, "t")
    try:
        text = template.render(messages=list[Any]())
    except FormatError as error:
        assert str(error).startswith("t failed on these messages: ")
    else:
        assert text == ""  # the sandbox turns a forbidden attribute into an undefined value


def test_what_a_template_looks_at() -> None:
    template = ChatTemplate(
        "{% if enable_thinking is defined and not x %}{{ m.reasoning_content }}{% endif %}{{ 'thinking hard' }}", "t"
    )
    assert {"enable_thinking", "x"} <= template.variables and "thinking" not in template.variables
    assert "reasoning_content" in template.fields and "thinking" not in template.fields


def test_time_is_that_of_the_call() -> None:
    assert ChatTemplate("{{ strftime_now('%Y') }}", "t").render().isdigit()
