"""Conversations as text: messages to prompts, ids to events. No tensors, and Jinja only when a template is used."""

from ds4py.chat.events import CallArguments, Called, CallEnd, CallStart, Event, Reasoning, Reply, Stop, Text, collect, joined
from ds4py.chat.formats import ChatFormat, TemplateFormat, ThinkTags, open_format
from ds4py.chat.messages import Message, ToolCall
from ds4py.chat.stream import ReplyStream
from ds4py.chat.template import ChatTemplate

__all__ = [
    "CallArguments",
    "CallEnd",
    "CallStart",
    "Called",
    "ChatFormat",
    "ChatTemplate",
    "Event",
    "Message",
    "Reasoning",
    "Reply",
    "ReplyStream",
    "Stop",
    "TemplateFormat",
    "Text",
    "ThinkTags",
    "ToolCall",
    "collect",
    "joined",
    "open_format",
]
