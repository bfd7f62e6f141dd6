"""From a model file to its chat format: the first opener of the table that knows the file.

A new family is one new file with an opener and one line here.
"""

from __future__ import annotations

from collections.abc import Callable

from ds4py.chat.formats.base import ChatFormat, ThinkTags
from ds4py.chat.formats.deepseek4 import open_deepseek4
from ds4py.chat.formats.fallback import CHATML, CHATML_MARKERS, CHATML_NOTE, PLAIN, PLAIN_NOTE, PLAIN_STOPS
from ds4py.chat.formats.generic import TemplateFormat
from ds4py.chat.template import ChatTemplate
from ds4py.errors import FormatError
from ds4py.tokenizer import Tokenizer
from ds4py.tokenizer.vocab import MetadataFile

__all__ = ["ChatFormat", "TemplateFormat", "ThinkTags", "open_format"]

Opener = Callable[[MetadataFile, Tokenizer], ChatFormat | None]


def open_format(file: MetadataFile, tokenizer: Tokenizer, template: str | None = None) -> ChatFormat:
    """The chat format of a model file, or the given Jinja source in its place. Raises FormatError if the template that would be
    used is broken."""
    if template is not None:
        return TemplateFormat(tokenizer, ChatTemplate(template, "the given chat template"), name="given template")
    for opener in (open_deepseek4, _own_template, _chatml):
        found = opener(file, tokenizer)
        if found is not None:
            return found
    fallback = ChatTemplate(PLAIN, "the plain fallback template")
    return TemplateFormat(tokenizer, fallback, name="plain", note=PLAIN_NOTE, stop_strings=PLAIN_STOPS)


def _own_template(file: MetadataFile, tokenizer: Tokenizer) -> ChatFormat | None:
    """`tokenizer.chat_template`, and `tokenizer.chat_template.tool_use` for conversations with tools if there is one."""
    own, tool_use = (_template(file, f"tokenizer.chat_template{suffix}") for suffix in ("", ".tool_use"))
    if own is None and tool_use is None:
        return None
    main = own or tool_use
    assert main is not None
    return TemplateFormat(tokenizer, main, tool_template=tool_use)


def _template(file: MetadataFile, key: str) -> ChatTemplate | None:
    source = file.kv.get(key)
    if source is None:
        return None
    if not isinstance(source, str):
        raise FormatError(f"{file.path}: metadata key {key} is not a string; give a template of your own instead")
    try:
        return ChatTemplate(source, f"{file.path}: the chat template {key}")
    except FormatError as error:
        raise FormatError(f"{error}; give a template of your own instead") from None


def _chatml(file: MetadataFile, tokenizer: Tokenizer) -> ChatFormat | None:
    if not all(marker in tokenizer.vocab.markers for marker in CHATML_MARKERS):
        return None
    return TemplateFormat(tokenizer, ChatTemplate(CHATML, "the ChatML fallback template"), name="chatml", note=CHATML_NOTE)
