"""How a session speculates: from what was opened and asked for to a session's drafter, depth policy and accept rule.

The three belong together, because what one may do depends on another. Where a draft can decide the text (opportunistic, above
temperature 0), proposals must be greedy, pools private and depths counted, so that the text is a function of the request. Where
it cannot, everything that saves time is allowed.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from ds4py.drafters import Drafters, SpecConfig, Target
from ds4py.engine.accept import Opportunistic, TargetDraw
from ds4py.engine.cost import CostAware
from ds4py.engine.depth import Adaptive, FixedDepth, SkipStreak
from ds4py.engine.ds4_depth import Ds4Depth
from ds4py.engine.engine import Engine
from ds4py.engine.session import SessionOptions
from ds4py.gguf import GgufFile
from ds4py.models import LoadedModel
from ds4py.protocols import DepthPolicy


def target_of(engine: Engine, g: GgufFile) -> Target:
    """What drafters must know of `engine`, which was opened from `g`."""
    model = engine.model if isinstance(engine.model, LoadedModel) else None
    return Target(g, engine.model.vocab_size, engine.n_ctx, engine.kernels, model)


def speculating(options: SessionOptions, drafters: Drafters, user: str = "") -> SessionOptions:
    """`options` with a drafter, a depth policy and an accept rule of their own; unchanged if no type runs.

    To be called for every session: what it makes holds one session's history. Sessions of one `user` may share what they saw."""
    opportunistic = is_opportunistic(options, drafters.config)
    drafter = drafters.new(opportunistic, user)
    if drafter is None:
        return options
    depth = _depth(drafters, opportunistic)
    return replace(options, drafter=drafter, depth=depth, rule=Opportunistic() if opportunistic else TargetDraw())


def is_opportunistic(options: SessionOptions, config: SpecConfig) -> bool:
    """Whether drafts may decide the text: asked for, and not greedy decoding throughout. A schedule draws nothing where `params`
    says temperature 0 (a grammar, tool syntax); one that does is sampled exactly."""
    return config.accept == "opportunistic" and options.params.temperature > 0


def line(drafters: Drafters, options: SessionOptions | None = None) -> str:
    """The start-up line, without a prefix: which drafter runs and how, or why none does. `options`: those of the only session;
    None where every request brings its own."""
    if not drafters.types:
        return drafters.line
    config = drafters.config
    cold, hot = (_DEPTHS[_policy(drafters, opportunistic)] for opportunistic in (False, config.accept == "opportunistic"))
    if options is None:
        depth = cold if cold == hot else f"{cold} at temperature 0 and {hot} above"
        how = f"{depth}, {config.accept} above temperature 0"
    elif is_opportunistic(options, config):
        how = f"{hot}, opportunistic"
    else:
        how = f"{cold}, {'exact' if options.params.temperature > 0 else 'greedy'}"
    streak = f", one draft left out after {config.skip_streak} in a row without an accepted token" if config.skip_streak else ""
    return f"{drafters.line}, {how}{streak}{_dearness(drafters, options)}"


def _dearness(drafters: Drafters, options: SessionOptions | None) -> str:
    """What is done about types that no acceptance could pay for."""
    config, said = drafters.config, ""
    decide = config.accept == "opportunistic" if options is None else is_opportunistic(options, config)
    if decide:
        said = _left_out(drafters)
    if (options is None or not decide) and config.depth == "cost" and drafters.in_vain():
        where = " at temperature 0" if options is None and decide else ""
        said += f"; no acceptance could pay for a token at {_shares(drafters)}, so it is asked but seldom{where}"
    return said


def _shares(drafters: Drafters, names: Collection[str] | None = None) -> str:
    """What a token of each type costs, of those `names` or all."""
    priced = zip(drafters.types, drafters.prices, strict=False)
    shares = [f"{price.of(1) - price.row:.2f}" for name, price in priced if names is None or name in names]
    return f"{' and '.join(shares)} of the model's cost"


def _left_out(drafters: Drafters) -> str:
    """Which types are not asked where only counts may decide, and what to do about it."""
    dear = drafters.too_dear()
    if not dear:
        return ""
    why = "as no acceptance could pay for it; --mtp-exact-sampling measures instead, --spec-depth adaptive uses it all the same"
    return f"; above temperature 0 without {' and '.join(dear)} (a token at {_shares(drafters, dear)}), {why}"


_DEPTHS: Final = MappingProxyType(
    {"cost": "depth by cost", "adaptive": "depth by acceptance", "fixed": "fixed depth", "ds4": "ds4's schedule"}
)


def _policy(drafters: Drafters, opportunistic: bool) -> str:
    """The depth policy that runs: one that looks at the clock may not decide a text."""
    asked = drafters.config.depth
    return drafters.counted if asked == "cost" and opportunistic else asked


def _depth(drafters: Drafters, opportunistic: bool) -> DepthPolicy:
    config, n_max = drafters.config, drafters.n_max
    kind = _policy(drafters, opportunistic)
    policy: DepthPolicy
    if kind == "fixed":
        policy = FixedDepth(n_max)
    elif kind == "adaptive":
        policy = Adaptive(n_max, drafters.n_min, drafters.price())
    elif kind == "ds4":
        policy = Ds4Depth(n_max)
    else:
        policy = CostAware(n_max, drafters.n_min, drafters.in_vain())
    return SkipStreak(policy, config.skip_streak) if config.skip_streak else policy
