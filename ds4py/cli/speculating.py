"""From the speculation options to what sessions draft with, and the lines that say so.

The idea: everything is decided in two steps, around the loading of the target. `spec_config` turns options into one checked
`SpecConfig` before any weight is read, so that a mistyped number costs no minute; `open_speculation` opens the drafters beside
the target. What comes out, a `Speculation`, is asked once for every session, because drafters and depth policies hold one
session's history.

The invariant: nothing drafts unless an option asked for it, and one line at the start says what runs or why nothing does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from ds4py.cli.options import environment, for_command
from ds4py.cli.parsing import Values
from ds4py.cli.placing import cpus_of, processors
from ds4py.cli.terminal import Terminal
from ds4py.drafters import (
    Drafters,
    ModSizes,
    NgramSizes,
    SpecConfig,
    check_file,
    draft_len,
    open_drafters,
    parse_types,
    recognise,
)
from ds4py.engine import Engine, SessionOptions
from ds4py.engine.accept import Synthetic, check_rates, synthetic_rates
from ds4py.engine.speculation import line, speculating, target_of
from ds4py.engine.statistics import Trace, llama_lines, mtp_timing_lines, telemetry
from ds4py.errors import Ds4Error, UsageError
from ds4py.gguf import GgufFile, open_gguf
from ds4py.protocols import SpecStats

if TYPE_CHECKING:
    from ds4py.drafters.learning import Learned
    from ds4py.engine import Session

# Names of llama.cpp's forks and older versions.
_OTHER_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "draft": "draft-simple",
        "eagle3": "draft-eagle3",
        "mtp": "draft-mtp",
        "nextn": "draft-mtp",
        **{f"ngram_{kind}": f"ngram-{kind.replace('_', '-')}" for kind in ("simple", "map_k", "map_k4v", "mod", "cache")},
    }
)
_LOOKUPS: Final = ("--lookup-cache-static", "--lookup-cache-dynamic")


@dataclass(frozen=True)
class Speculation:
    """Opened drafters and how sessions are to use them; `rates`: made-up acceptance for benchmarks, empty for the real one;
    `learned`: what is to be added to the dynamic lookup cache, if there is one."""

    drafters: Drafters
    rates: tuple[float, ...] = ()
    trace: Trace | None = None
    timing: bool = False
    learned: Learned | None = None

    def options(self, options: SessionOptions) -> SessionOptions:
        """`options` for one new session, with a drafter of its own if one runs."""
        made = speculating(options, self.drafters)
        if self.rates:
            made = replace(made, rule=Synthetic(self.rates, options.seed, options.stop_ids))
        return made if self.trace is None or made.drafter is None else replace(made, trace=self.trace.of(0))

    def opening_lines(self, options: SessionOptions | None) -> Iterator[str]:
        """What is said before the first token: which drafter and which policies run for sessions with `options` (None: every
        request brings its own)."""
        yield line(self.drafters, options)
        for sentence in self.drafters.unsure:
            yield f"warning: {sentence}"
        if self.rates:
            shares = ", ".join(f"{rate:.3f}" for rate in self.rates)
            yield "warning: acceptance is made up, for benchmarks only: what is printed is not the model's text"
            yield f"made-up acceptance commits {1 + sum(self.rates):.2f} tokens a pass, by position {shares}"

    def closing_lines(self, stats: SpecStats, details: bool = True) -> Iterator[str]:
        """What is said when a session, or without `details` a request, has ended: nothing if nothing was drafted and no timing
        was asked for."""
        if self.rates and stats.drafted:
            yield "the acceptance below was made up, and so was the text"
        yield from llama_lines(stats, details or self.timing, self.drafters.types)
        if self.timing and self.drafters.types:
            yield from mtp_timing_lines(stats, "+".join(self.drafters.types))
            yield f"net of drafting and verifying {telemetry(stats)['netTokensPerSecond']:.2f} t/s"

    def learn(self, session: Session) -> None:
        """Take over what `session` learned, before it goes or forgets."""
        if self.learned is not None:
            self.learned.take(session.drafter)

    def close(self) -> None:
        """End the trace."""
        if self.trace is not None:
            self.trace.close()


def asked_types(values: Values) -> tuple[str, ...]:
    """The types of --spec-type (all of them, if it was given several times), --spec-default and --dspark, in precedence."""
    names = [name.strip() for text in values.texts("spec_type") for name in text.split(",")]
    added = ["ngram-mod"] * values.flag("spec_default") + ["draft-dspark"] * _dspark(values)
    return checked_types(names + added)


def _dspark(values: Values) -> bool:
    """Whether one of ds4's own flags asks for DSpark."""
    return values.flag("dspark") or values.flag("dspark_strict") or values.has("dspark_confidence")


def checked_types(names: list[str]) -> tuple[str, ...]:
    """`names` in precedence, other programs' names included. UsageError for one that is unknown."""
    names = [_OTHER_NAMES.get(name, name) for name in names]
    return parse_types(",".join(names)) if names else ()


def spec_config(values: Values, types: tuple[str, ...], draft: Path | None, accept: str, depth: str) -> SpecConfig:
    """All settings of speculation as one value. Raises UsageError for what can never be obeyed."""
    if "ngram-cache" not in types:
        for name in _LOOKUPS:
            if values.was_given(name):
                raise UsageError(f"{name} is a file of the drafter ngram-cache: add it to the types, or leave the file out")

    cpus = cpus_of(values, "--spec-draft-cpu-mask", "--spec-draft-cpu-range")

    def sizes(kind: str) -> NgramSizes:
        return NgramSizes(*(values.integer(f"spec_ngram_{kind}_{name}") for name in ("size_n", "size_m", "min_hits")))

    return SpecConfig(
        types=types,
        draft_model=draft,
        draft_cpus=cpus,
        draft_threads=_draft_threads(values, len(cpus or ()) or processors()),
        n_max=values.integer("spec_draft_n_max") if values.has("spec_draft_n_max") else None,
        n_min=values.integer("spec_draft_n_min"),
        p_min=values.number("spec_draft_p_min"),
        conf_min=values.number("spec_draft_conf_min") if values.has("spec_draft_conf_min") else None,
        candidates=values.integer("spec_draft_candidates"),
        ngram_simple=sizes("simple"),
        ngram_map_k=sizes("map_k"),
        ngram_map_k4v=sizes("map_k4v"),
        ngram_mod=ModSizes(*(values.integer(f"spec_ngram_mod_{name}") for name in ("n_match", "n_min", "n_max"))),
        lookup_static=_file(values, "lookup_cache_static"),
        lookup_dynamic=_file(values, "lookup_cache_dynamic"),
        accept=accept,
        depth=depth,
        skip_streak=values.integer("spec_skip_streak"),
    )


def _draft_threads(values: Values, n_processors: int) -> int | None:
    """As many as asked for; for 0 and -1 one for every processor, as in llama.cpp."""
    if not values.has("spec_draft_threads"):
        return None
    asked = values.integer("spec_draft_threads")
    return asked if asked > 0 else n_processors


def config_of(values: Values, log: Terminal) -> SpecConfig:
    """`ds4`'s speculation options, with the draft model fetched if it is to come from the hub and opened. Nothing of the target
    is needed, so a refusal comes before its weights are read."""
    if values.flag("spec_disable"):
        return SpecConfig()
    types = asked_types(values)
    synthetic = values.has("spec_synth_len") or values.has("spec_synth_rates")
    depth = "fixed" if synthetic and not values.was_given("--spec-depth") else values.text("spec_depth")
    accept = "exact" if values.flag("mtp_exact_sampling") else "opportunistic"
    path = None if _switched_off(values) else _draft_file(values, log)
    if _dspark(values) and types and path is None:
        raise UsageError("--dspark needs the support file that drafts: name it with --mtp-model")
    config = spec_config(values, types, path, accept, depth)
    if values.has("dspark_confidence"):
        if values.was_given("--spec-draft-conf-min"):
            raise UsageError("--dspark-confidence and --spec-draft-conf-min are the same setting: give one of them")
        config = replace(config, conf_min=values.number("dspark_confidence"))
    if path is not None:
        g = open_gguf(path)
        check_file(types, g)
        config = replace(config, draft_model=g)
        types = types or (recognise(g),)
        config = _scheduled(values, _for_mtp(values, config, types, log), types)
        if "draft-dspark" in types:
            _say_unread(values, log)
    if synthetic and not config.types and config.draft_model is None:
        raise UsageError("synthetic acceptance needs something that drafts: add --spec-type")
    if values.has("spec_synth_rates"):
        check_rates(_rates(values.text("spec_synth_rates")))
    return config


def _for_mtp(values: Values, config: SpecConfig, types: tuple[str, ...], log: Terminal) -> SpecConfig:
    """ds4's settings of one-stage MTP: --mtp-draft counts the token that the model chooses itself, and is 1 where nobody says, so
    that --mtp-model alone loads and drafts nothing. llama.cpp's --spec-draft-n-max counts guesses, and its --spec-type asks."""
    given = [name for name in ("--mtp-draft", "--mtp-margin") if values.was_given(name)]
    if "draft-mtp" not in types:
        if given:
            log.say(f"ds4: {' and '.join(given)} changed nothing: they are for one-stage MTP, and this file is for {types[-1]}")
        return config
    if values.was_given("--mtp-draft") and values.has("spec_draft_n_max"):
        raise UsageError("--mtp-draft and --spec-draft-n-max set the same length: give one of them")
    if not given and (not values.has("mtp_model") or values.texts("spec_type")):
        return config
    n_max = config.n_max if values.has("spec_draft_n_max") else values.integer("mtp_draft") - 1
    return replace(config, n_max=n_max, margin=values.number("mtp_margin"))


def _scheduled(values: Values, config: SpecConfig, types: tuple[str, ...]) -> SpecConfig:
    """ds4's switch of its schedule, for DSpark alone."""
    if "draft-dspark" not in types or not values.has("dspark_scheduler") or values.was_given("--spec-depth"):
        return config
    return replace(config, depth="ds4" if values.text("dspark_scheduler") == "1" else "fixed")


def _say_unread(values: Values, log: Terminal) -> None:
    """One line for ds4's tuning names of DSpark that are set and mean nothing here."""
    known = environment(values.command)
    unread = sorted(name for name in os.environ if name.startswith("DS4_DSPARK_") and name not in known)
    if unread:
        log.say(f"ds4: {', '.join(unread)} {'is' if len(unread) == 1 else 'are'} set and not read: there is nothing to tune here")


def rows_needed(config: SpecConfig) -> int:
    """Rows of a forward call that the longest draft takes, in whole groups of 8 that kernels like; 0 without drafts."""
    of_type = {
        "ngram-simple": config.ngram_simple.value,
        "ngram-map-k": config.ngram_map_k.value,
        "ngram-map-k4v": config.ngram_map_k4v.value,
        "ngram-mod": config.ngram_mod.n_max,
    }
    lengths = [of_type.get(name, 8) for name in config.types]
    if config.draft_model is not None:
        lengths.append(draft_len(config))
    return -(-(1 + max(lengths)) // 8) * 8 if lengths else 0


def draft_file(config: SpecConfig) -> GgufFile | None:
    """The file whose weights draft, for the memory line."""
    return config.draft_model if isinstance(config.draft_model, GgufFile) else None


def open_speculation(values: Values, config: SpecConfig, engine: Engine, g: GgufFile, log: Terminal) -> Speculation:
    """Open `config`'s drafters beside `engine`, which was opened from `g`."""
    drafters = open_drafters(config, target_of(engine, g), lambda sentence: log.say(f"ds4: {sentence}"))
    if _switched_off(values):
        drafters = replace(drafters, line=f"speculation: off, because {_off_by(values)}")
    elif (off := _loaded_only(values, drafters)) is not None:
        loaded = f"speculation: off, because of {off}; {drafters.line.removeprefix('speculation: ')} was loaded"
        drafters = replace(drafters, types=(), makers=(), line=loaded)
    rates = _synthetic(values, drafters.n_max)
    trace = Trace.open(values.text("spec_trace")) if values.has("spec_trace") else None
    return Speculation(drafters, rates, trace, values.flag("mtp_timing"), _learned(config, engine) if not rates else None)


def _loaded_only(values: Values, drafters: Drafters) -> str | None:
    """The option that loads drafters and lets none draft: ds4's --quality does so for DeepSeek's."""
    if values.flag("dspark_strict"):
        return "--dspark-strict"
    if drafters.types == ("draft-mtp",) and drafters.n_max == 0:
        return "--spec-draft-n-max 0" if values.has("spec_draft_n_max") else "--mtp-draft 1"
    return "--quality" if values.was_given("--quality") and drafters.counted == "ds4" else None


def _learned(config: SpecConfig, engine: Engine) -> Learned | None:
    """Where what sessions learn goes; made-up text (--spec-synth-*) teaches nothing."""
    if config.lookup_dynamic is None:
        return None
    from ds4py.drafters.learning import Learned

    return Learned(config.lookup_dynamic, engine.model.vocab_size)


def _synthetic(values: Values, n_max: int) -> tuple[float, ...]:
    """The rates of --spec-synth-rates or --spec-synth-len for drafts of n_max tokens; empty without either."""
    if values.has("spec_synth_len"):
        return tuple(synthetic_rates(values.number("spec_synth_len"), n_max))
    if not values.has("spec_synth_rates"):
        return ()
    rates = _rates(values.text("spec_synth_rates"))
    if len(rates) != n_max:
        has = f"--spec-synth-rates has {len(rates)} numbers"
        raise UsageError(f"{has}, but the longest draft has {n_max} tokens; give one for each")
    return rates


def _rates(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--spec-synth-rates takes numbers separated by commas, not {text!r}") from None


def _off_by(values: Values) -> str:
    return "of --spec-disable" if values.flag("spec_disable") else "--spec-type says none"


def _switched_off(values: Values) -> bool:
    """Whether the user said `none` or --spec-disable, which also keep a draft model out."""
    names = (name.strip() for text in values.texts("spec_type") for name in text.split(","))
    return values.flag("spec_disable") or "none" in names


def _draft_file(values: Values, log: Terminal) -> Path | None:
    """The draft model's file: that of -md or --mtp-model, or of the hub's repository, in which -md then names a file."""
    if values.has("mtp_model"):
        if values.has("spec_draft_model") or values.has("spec_draft_hf"):
            raise UsageError("--mtp-model and --spec-draft-model both name the file that drafts: give one of them")
        return _file(values, "mtp_model")
    if not values.has("spec_draft_hf"):
        return _file(values, "spec_draft_model")
    from ds4py.cli.obtaining import obtain
    from ds4py.hub.choosing import reference

    name = values.text("spec_draft_model") if values.has("spec_draft_model") else None
    return obtain(values, reference(values.text("spec_draft_hf"), name), log)


def _file(values: Values, key: str) -> Path | None:
    return Path(values.text(key)) if values.has(key) else None


def say_opening(speculation: Speculation | None, options: SessionOptions | None, log: Terminal) -> None:
    """What will draft, and how."""
    if speculation is not None:
        for sentence in speculation.opening_lines(options):
            log.say(f"ds4: {sentence}")


def say_ignored(values: Values, mode: str, log: Terminal) -> None:
    """One line for the speculation options that were given to a mode that drafts nothing; none if there are none."""
    names = [option.name for option in for_command(values.command) if "speculation" in option.topics]
    given = list(dict.fromkeys(name for name in values.given if name in names))
    if given:
        log.say(f"ds4: {', '.join(given)} {'changes' if len(given) == 1 else 'change'} nothing here: {mode} drafts nothing")


def keep_learned(speculation: Speculation | None, session: Session | None, log: Terminal) -> bool:
    """Add what was learned, by `session` too, to the dynamic lookup cache; False, and a sentence, if that fails: the file is then
    as it was."""
    if speculation is None or speculation.learned is None:
        return True
    try:
        if session is not None:
            speculation.learn(session)
        speculation.learned.write()
    except Ds4Error as error:
        log.say(f"ds4: what was learned is lost: {error}")
        return False
    return True


def say_closing(speculation: Speculation | None, session: Session, log: Terminal) -> None:
    """The statistics of a session that is over."""
    if speculation is not None:
        for sentence in speculation.closing_lines(session.stats):
            log.say(f"ds4: {sentence}")
