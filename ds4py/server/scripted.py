"""A model that says what a file tells it to: for tests of servers and of the programs that talk to them.

The idea: everything about a server but the network itself can be tested without weights, if the model is scripted and all the
rest is real. So this is a `protocols.Model` under the real engine: sessions, prefix reuse, drafts, sampling, grammars, stop
strings and tool calls run as they always do, and only the logits are made up: at each place of a reply the scripted piece is the
likeliest token by far. Prompts are read as single bytes, so a reply that comes back in a prompt is cut differently from how it
was written, as with real models. Masks offer forced text as it would be cut, so a script that a grammar is to hold for is written
in single characters; tools that clients call strict are taken as others here.

The file is JSON: {"replies": [REPLY, ...]}, and optionally "template", a chat template in Jinja, or "format": "deepseek4", for
DeepSeek V4's own prompts and DSML calls. A reply has "pieces", each a text, {"hex": "f09f"} for
bytes that are no whole characters, or {"text": ..., "delay": seconds}; and optionally
  "when"     it answers prompts that contain this text; without it, any
  "once"     it answers one prompt; the first reply that fits is taken, and the last one answers when none is left
  "delay"    seconds before each piece; "prefill": seconds that reading the prompt takes
  "endless"  the pieces begin again instead of the reply ending
  "sharp"    by how much the scripted piece is likelier than others (40: certain)
  "fail"     at the end, the logits break: an error of the server
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ds4py.chat.formats import deepseek4
from ds4py.chat.formats import deepseek4_text as words
from ds4py.chat.formats.dsml import MARK
from ds4py.engine import Engine
from ds4py.errors import FormatError, ResourceError
from ds4py.protocols import F32, I64, CacheView, Out, Span
from ds4py.server.chatml import TEMPLATE
from ds4py.tokenizer import Tokenizer, load_tokenizer
from ds4py.tokenizer.bpe import byte_alphabet

MARKERS: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>")
# by format: the model's architecture, markers that are control tokens, the last of which ends a reply, and other markers
_FORMATS: Final = MappingProxyType(
    {
        "chatml": ("scripted", MARKERS[:3], MARKERS[3:]),
        "deepseek4": (
            deepseek4.ARCHITECTURE,
            (words.BOS, words.EOS),
            (words.USER, words.ASSISTANT, words.THINK, words.END_THINK, MARK),
        ),
    }
)
_CONTROL, _USER_DEFINED, _NORMAL = 3, 4, 1
_SLICE: Final = 0.05  # seconds that a wait sleeps between looks at whether it is still wanted


@dataclass(frozen=True)
class ScriptedReply:
    """One reply, its pieces as bytes."""

    pieces: tuple[bytes, ...]
    delays: tuple[float, ...]
    when: str = ""
    once: bool = False
    prefill: float = 0.0
    endless: bool = False
    sharp: float = 40.0
    fail: bool = False


@dataclass(frozen=True)
class ScriptedFile:
    """What a tokenizer and a chat format read off a model file."""

    path: str
    kv: Mapping[str, Any]


class ScriptedState:
    """A `protocols.StateView` that remembers tokens and nothing else."""

    floor = 0
    caches: Sequence[CacheView] = ()
    tiles: Sequence[tuple[int, int]] = ()

    def __init__(self, n_ctx: int) -> None:
        self.table: I64 = np.zeros((0, 4), np.int64)
        self.table_at = 0
        self.n_ctx = n_ctx
        self.tokens: list[int] = []
        self.reply: ScriptedReply | None = None
        self.start = 0  # position of the reply's first token
        self.check: Callable[[], None] = _fine  # raises what ends a wait

    @property
    def pos(self) -> int:
        return len(self.tokens)

    @property
    def high(self) -> int:
        return len(self.tokens)

    @property
    def n_bytes(self) -> int:
        return 8 * self.n_ctx

    def truncate(self, pos: int) -> None:
        if not 0 <= pos <= len(self.tokens):
            raise ValueError(f"truncate({pos}) of a state at {len(self.tokens)}")
        del self.tokens[pos:]

    def advance(self, n: int, tiled: bool) -> None:
        raise TypeError("a scripted model advances its states itself")

    def clear(self) -> None:
        self.tokens = []

    def snapshot(self) -> ScriptedSnapshot:
        return ScriptedSnapshot(tuple(self.tokens))

    def checkpoint(self) -> ScriptedSnapshot:
        return ScriptedSnapshot(())  # truncating loses nothing

    def restore(self, snapshot: ScriptedSnapshot) -> None:
        self.tokens = list(snapshot.tokens)

    def payload(self) -> dict[str, npt.NDArray[Any]]:
        return {"tokens": np.array(self.tokens, np.int64)}

    def load(self, payload: Mapping[str, npt.NDArray[Any]]) -> None:
        self.tokens = payload["tokens"].tolist()


@dataclass(frozen=True)
class ScriptedSnapshot:
    tokens: tuple[int, ...]

    @property
    def pos(self) -> int:
        return len(self.tokens)

    @property
    def n_bytes(self) -> int:
        return 8 * len(self.tokens)


class ScriptedModel:
    """`protocols.Model` and, for what an engine asks of them, `protocols.Kernels`."""

    name = "scripted"
    prefill_tile = 0
    n_threads = 1
    n_layers = 0

    def __init__(self, tokenizer: Tokenizer, stop: int, n_ctx: int, max_rows: int = 64) -> None:
        """`stop`: the token that ends a reply."""
        self.tokenizer = tokenizer
        self.vocab_size = tokenizer.vocab_size
        self.n_ctx_train = n_ctx
        self.max_rows = max_rows
        self.n_rows = 0  # evaluated so far
        self._ids = {tokenizer.token_bytes(i): i for i in reversed(range(tokenizer.vocab_size))}
        self._stop = stop

    def new_state(self, n_ctx: int, slack: int) -> ScriptedState:
        return ScriptedState(n_ctx)

    def forward(self, spans: Sequence[Span], taps: Sequence[int] = (), path: str = "row") -> Out:
        rows: list[F32] = []
        offsets = [0]
        for span in spans:
            state = span.state
            assert isinstance(state, ScriptedState)
            first = state.pos + len(span.tokens) - span.n_logits
            self._wait(state, first, len(span.tokens), span.n_logits)
            rows += [self._row(state, pos + 1) for pos in range(first, first + span.n_logits)]
            offsets.append(offsets[-1] + span.n_logits)
        for span in spans:
            assert isinstance(span.state, ScriptedState)
            span.state.tokens += span.tokens
            self.n_rows += len(span.tokens)
        return Out(np.stack(rows) if rows else np.zeros((0, self.vocab_size), np.float32), offsets)

    def scripted_token(self, reply: ScriptedReply, place: int) -> int | None:
        """The token at `place` of the reply; None where it breaks."""
        if place >= len(reply.pieces) and not reply.endless:
            return None if reply.fail else self._stop
        return self._ids[reply.pieces[place % len(reply.pieces)]]

    def _row(self, state: ScriptedState, pos: int) -> F32:
        """Logits [V] for the token at `pos`: the scripted one, over a floor that differs from token to token."""
        row: F32 = np.random.default_rng(pos).random(self.vocab_size, np.float32)
        reply, place = state.reply, pos - state.start
        token = self._stop if reply is None or place < 0 else self.scripted_token(reply, place)
        row[self._stop if token is None else token] = np.nan if token is None else reply.sharp if reply else 40.0
        return row

    def _wait(self, state: ScriptedState, first: int, n_rows: int, n_logits: int) -> None:
        """Take the time that the script says. `first`: position of the first row with logits."""
        reply = state.reply
        if reply is None:
            return
        if n_logits == 0:
            seconds = reply.prefill * n_rows / max(state.start - 1, 1)
        else:
            place = first + 1 - state.start
            seconds = reply.delays[place % len(reply.delays)] if place >= 0 and reply.delays else 0.0
        end = time.monotonic() + seconds
        state.check()
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, _SLICE))
            state.check()


class Script:
    """An opened script: the file that formats read, an engine on it, and which reply is due."""

    def __init__(self, path: str, replies: Sequence[ScriptedReply], template: str, n_ctx: int, form: str = "chatml") -> None:
        """form: a key of _FORMATS; `template` is that of "chatml"."""
        self.replies = list(replies)
        self.file = ScriptedFile(path, MappingProxyType(_metadata(replies, template, form)))
        self.tokenizer = load_tokenizer(self.file)
        self.model = ScriptedModel(self.tokenizer, int(self.file.kv["tokenizer.ggml.eos_token_id"]), n_ctx)
        self.engine = Engine(self.model, self.model, n_ctx)  # type: ignore[arg-type]  # it loads no weights and runs no graph
        self._used: set[int] = set()

    def begin(self, state: Any, prompt: str, n_prompt: int, check: Callable[[], None]) -> None:
        """`state`'s next tokens, from position n_prompt on, are the reply that is due for `prompt`."""
        fitting = [i for i, reply in enumerate(self.replies) if reply.when in prompt and i not in self._used]
        at = fitting[0] if fitting else len(self.replies) - 1
        if self.replies[at].once:
            self._used.add(at)
        state.reply, state.start, state.check = self.replies[at], n_prompt, check


def open_script(path: str | os.PathLike[str], n_ctx: int) -> Script:
    """Read a script file. Raises ResourceError if it cannot be read, FormatError, naming the place, if it is none."""
    name = os.fspath(path)
    try:
        with open(name, encoding="utf-8") as stream:
            content = json.load(stream)
    except OSError as error:
        raise ResourceError(f"{name}: cannot read the script: {error.strerror or error}") from error
    except ValueError as error:
        raise FormatError(f"{name}: the script is not valid JSON: {error}") from error
    return read_script(content, name, n_ctx)


def read_script(content: Any, name: str, n_ctx: int) -> Script:
    """A script from its parsed content. FormatError as in `open_script`."""
    replies = content.get("replies") if isinstance(content, dict) else None
    if not isinstance(replies, list) or not replies:
        raise FormatError(f'{name}: a script is {{"replies": [...]}} with at least one reply')
    form = content.get("format", "chatml")
    if form not in _FORMATS:
        raise FormatError(f"{name}: a script's format is {' or '.join(_FORMATS)}, not {form!r:.40}")
    template = content.get("template", TEMPLATE)
    return Script(name, [_reply(item, f"{name}: replies[{i}]") for i, item in enumerate(replies)], str(template), n_ctx, form)


def _reply(item: Any, where: str) -> ScriptedReply:
    if not isinstance(item, dict) or not isinstance(item.get("pieces"), list):
        raise FormatError(f'{where}: a reply is an object with "pieces", a list')
    known = {"pieces", "when", "once", "delay", "prefill", "endless", "sharp", "fail"}
    if odd := sorted(item.keys() - known):
        raise FormatError(f"{where}: a reply has no field {odd[0]!r}; there are {', '.join(sorted(known))}")
    pieces, delays = [], []
    for k, piece in enumerate(item["pieces"]):
        whole = piece if isinstance(piece, dict) else {"text": piece}
        try:
            pieces.append(bytes.fromhex(whole["hex"]) if "hex" in whole else whole["text"].encode())
            delays.append(float(whole.get("delay", 0.0) or item.get("delay", 0.0)))
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise FormatError(f'{where}.pieces[{k}]: a piece is a text, {{"hex": ...}} or {{"text": ..., "delay": s}}') from error
    last = float(item.get("delay", 0.0))
    return ScriptedReply(
        tuple(piece for piece in pieces if piece),
        (*delays, last),
        str(item.get("when", "")),
        bool(item.get("once")),
        float(item.get("prefill", 0.0)),
        bool(item.get("endless")) and bool(pieces),
        float(item.get("sharp", 40.0)),
        bool(item.get("fail")),
    )


def _metadata(replies: Sequence[ScriptedReply], template: str, form: str) -> dict[str, Any]:
    """A byte-level vocabulary: the markers, every byte, and the pieces, which no text is ever cut into."""
    architecture, control, others = _FORMATS[form]
    to_char = {byte: char for char, byte in byte_alphabet().items()}
    singles = {bytes([byte]) for byte in range(256)} | {marker.encode() for marker in (*control, *others)}
    pieces = dict.fromkeys(piece for reply in replies for piece in reply.pieces if piece not in singles)
    spelled = ["".join(to_char[byte] for byte in piece) for piece in pieces]
    kinds = [_CONTROL] * len(control) + [_USER_DEFINED] * len(others) + [_NORMAL] * (256 + len(spelled))
    return {
        "general.architecture": architecture,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [*control, *others, *(to_char[byte] for byte in range(256)), *spelled],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.eos_token_id": len(control) - 1,
        **({"tokenizer.chat_template": template} if form == "chatml" else {}),
    }


def _fine() -> None:
    return None
