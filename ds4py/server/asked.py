"""What a client asks, whichever API it used, and how it is refused.

The idea: three APIs are three spellings of one request. Each is read into this frozen value, where None means that the client
said nothing and the server's own default holds; everything behind it (prompt, sampling, generation) knows no API. A request
that cannot be obeyed is a `Refusal`, one sentence with an HTTP status, and each API has its own form to say it in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ds4py.chat import Message


class Refusal(Exception):
    """Why a request is not answered; `str(refusal)` is the sentence. `code`: a word that programs look for; `param`: the field at
    fault; `numbers`: more fields of the error, such as n_ctx."""

    def __init__(
        self,
        status: int,
        sentence: str,
        *,
        code: str | None = None,
        param: str | None = None,
        numbers: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(sentence)
        self.status, self.code, self.param = status, code, param
        self.numbers = dict(numbers or {})
        self.retry_after: int | None = None  # seconds


def bad(sentence: str, param: str | None = None, code: str | None = None) -> Refusal:
    """A request that must be changed."""
    return Refusal(400, sentence, code=code, param=param)


@dataclass(frozen=True)
class Sampling:
    """How the client wants tokens drawn; None: the server's default."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    repeat_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    max_draft: int | None = None  # most tokens drafted at a time; 0: no drafts
    bias: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ToolChoice:
    """mode: "auto", "none" or "required"; names: the tools that may be called (empty: all)."""

    mode: str = "auto"
    names: tuple[str, ...] = ()
    parallel: bool = True


@dataclass(frozen=True)
class Shown:
    """What a function that the model is shown stands for: a tool that is no plain function, by the name that its client knows."""

    name: str
    namespace: str | None = None
    custom: bool = False  # it takes raw text
    searches: bool = False  # it is the client's search for more tools


@dataclass(frozen=True)
class Asked:
    """One request. Either `messages` or `prompt` (text that is continued as it is, or token ids) is given."""

    model: str
    messages: tuple[Message, ...] = ()
    prompt: str | tuple[int, ...] | None = None
    tools: tuple[Mapping[str, Any], ...] = ()
    found: tuple[Mapping[str, Any], ...] = ()  # tools that came up on the way: callable, and told where they came up
    shown: Mapping[str, Shown] = field(default_factory=dict)  # of both, by name
    strict: bool = False  # calls must obey the schemas of their tools
    choice: ToolChoice = ToolChoice()
    sampling: Sampling = Sampling()
    think: bool | None = None
    effort: str | None = None
    think_tokens: int | None = None  # most tokens of reasoning
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    grammar: tuple[str, Any] | None = None  # kind of grammar and its source: what the whole answer must be
    stream: bool = False
    include_usage: bool = False
    ignored: tuple[str, ...] = ()  # fields that mean nothing here, for one line of the log
