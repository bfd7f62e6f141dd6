"""Chat templates of model files: Jinja programs by strangers, run in a sandbox.

The idea: the environment is the one templates are written for (the conventions of the transformers library: blocks trimmed,
`break` and `continue`, `raise_exception`, `strftime_now`, a `tojson` that keeps Unicode and escapes no HTML, the `generation`
block), so a template means here what its author tested. A template is compiled when the file is opened: a broken one is an
error then, not in the middle of a conversation. Jinja is imported only when a template is used.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ds4py.errors import Ds4Error, FormatError, UsageError

if TYPE_CHECKING:
    from jinja2 import Environment


class ChatTemplate:
    """A compiled template. `variables` are the names it reads; `fields` the attribute names and string constants in it, among
    them every key of a message that it looks at."""

    def __init__(self, source: str, where: str) -> None:
        """`where` names the template in messages. Raises FormatError if it is not valid Jinja."""
        from jinja2 import TemplateError, nodes

        self.source = source
        self._where = where
        environment = _environment()
        try:
            tree = environment.parse(source)
            self._template = environment.from_string(source)
        except TemplateError as error:
            line = getattr(error, "lineno", None)
            raise FormatError(f"{where} is broken{f' in line {line}' if line else ''}: {error.message}") from None
        except RecursionError:
            raise FormatError(f"{where} is broken: it is nested too deeply") from None
        self.variables = frozenset(node.name for node in tree.find_all(nodes.Name) if node.ctx == "load")
        strings = (node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str))
        self.fields = frozenset(node.attr for node in tree.find_all(nodes.Getattr)) | frozenset(strings)

    def render(self, **variables: Any) -> str:
        """The text for these variables. UsageError if the template refuses the messages, FormatError if it fails on them."""
        try:
            return self._template.render(**variables)
        except Ds4Error:
            raise
        except Exception as error:  # whatever a stranger's program can raise
            kind = type(error).__name__
            raise FormatError(f"{self._where} failed on these messages: {kind}: {error}") from None


def _environment() -> Environment:
    """The sandbox; it holds no state between templates."""
    from jinja2 import nodes
    from jinja2.ext import Extension, LoopControlExtension
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class GenerationBlock(Extension):
        """`{% generation %}...{% endgeneration %}` marks the assistant's text for training; here it is only its body."""

        tags = {"generation"}

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[LoopControlExtension, GenerationBlock]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> None:
    raise UsageError(f"the model's chat template refuses these messages: {message}")
