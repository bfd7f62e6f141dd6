"""One prompt answered by one contender: the tokens, the seconds, and what every pass cost.

A contender is plain decoding or a `SpecConfig`. Every run is a session of its own that reads the prompt with its drafter attached
(a drafter that feeds on the target's residuals has to see them); only generation is timed. Drafters that learn start new every
time, draft models are loaded once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from ds4py.chat import ChatFormat, Message
from ds4py.cli.eval.prompts import Prompt
from ds4py.drafters import Drafters, SpecConfig, open_drafters
from ds4py.engine import Engine, Session, SessionOptions
from ds4py.engine.speculation import speculating, target_of
from ds4py.gguf import GgufFile
from ds4py.protocols import Pass, SamplingParams, SpecStats
from ds4py.tokenizer import Tokenizer

MIN_P = 0.05  # above temperature 0, as `ds4` has it


@dataclass(frozen=True)
class Contender:
    """What is measured; without a config plain decoding."""

    name: str
    config: SpecConfig | None = None


@dataclass(frozen=True)
class Run:
    """All turns of a prompt. `answers` holds the generated ids of each."""

    answers: Sequence[Sequence[int]]
    prompt_tokens: int
    prompt_seconds: float
    seconds: float
    stats: SpecStats
    passes: Sequence[Pass]
    finish: str

    @property
    def tokens(self) -> int:
        return sum(map(len, self.answers))

    @property
    def tps(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0


@dataclass
class Bench:
    """An opened model that answers prompts."""

    g: GgufFile
    tokenizer: Tokenizer
    chat: ChatFormat
    engine: Engine
    n_gen: int  # tokens of an answer at most
    _opened: dict[str, Drafters] = field(default_factory=dict)
    _n_runs: int = 0

    def drafters(self, contender: Contender) -> Drafters:
        """Opened at the first call."""
        assert contender.config is not None
        if contender.name not in self._opened:
            self._opened[contender.name] = open_drafters(contender.config, target_of(self.engine, self.g))
        return self._opened[contender.name]

    def run(self, prompt: Prompt, temperature: float, seed: int, contender: Contender) -> Run:
        """Answer every turn; the answers before a turn are part of what it reads."""
        passes: list[Pass] = []
        session = self._session(temperature, seed, contender, passes)
        messages: list[Message] = []
        answers: list[list[int]] = []
        reading = writing = 0.0
        n_prompt = 0
        for turn in prompt.turns:
            messages.append(Message("user", turn))
            ids = self.tokenizer.encode_prompt(self.chat.render(messages))
            began = time.perf_counter()
            n_prompt += session.sync(ids).fed + 1
            middle = time.perf_counter()
            for _ in session.generate(self.n_gen):
                pass
            reading, writing = reading + middle - began, writing + time.perf_counter() - middle
            answers.append(list(session.tokens[len(ids) :]))
            words = [token for token in answers[-1] if token not in session.stop_ids]
            messages.append(Message("assistant", self.tokenizer.decode(words)))
        return Run(answers, n_prompt, reading, writing, session.stats, passes, session.finish or "")

    def _session(self, temperature: float, seed: int, contender: Contender, passes: list[Pass]) -> Session:
        stops = self.chat.stop_ids | self.tokenizer.stop_ids
        params = SamplingParams(temperature, min_p=MIN_P if temperature else 0.0)
        options = SessionOptions(params=params, seed=seed, stop_ids=stops, trace=passes.append)
        if contender.config is not None:
            self._n_runs += 1
            options = speculating(options, self.drafters(contender), user=f"run {self._n_runs}")
        return self.engine.session(options)


def context_needed(prompts: Sequence[Prompt], chat: ChatFormat, tokenizer: Tokenizer, n_gen: int) -> int:
    """Positions that the longest prompt takes with all its answers."""
    longest = 0
    for prompt in prompts:
        messages = [Message("user", turn) for turn in prompt.turns]
        n = sum(len(tokenizer.encode_prompt(chat.render([message]))) for message in messages)
        longest = max(longest, n + len(messages) * n_gen)
    return longest + 64  # templates put a few tokens between turns
