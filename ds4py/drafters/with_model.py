"""Opening the drafters that come with a file: a model of its own, or one that borrows from the target and listens to its layers.

The file is loaded once, beside the target; sessions get a state of their own. What the file says (its block, its heads) sets the
defaults and the limits of what the user asked for; what does not fit the target is refused here, by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ds4py.drafters.aim import Limits, top_probability
from ds4py.drafters.block import BlockDraft, BlockDrafter, Network
from ds4py.drafters.config import N_MAX, SpecConfig
from ds4py.drafters.opened import Notice, Opened, Target
from ds4py.drafters.placement import running_on
from ds4py.drafters.price import block_price, model_price
from ds4py.errors import UnsupportedError, UsageError
from ds4py.gguf import GgufFile
from ds4py.gguf.identity import identity
from ds4py.models import LoadedModel
from ds4py.models.drafts import Lender
from ds4py.models.tensors import Tensors
from ds4py.protocols import Drafter

if TYPE_CHECKING:
    from ds4py.models.deepseek4 import Model as Flash

DEEPSEEK_SUPPORT: Final = ("deepseek4-dspark", "deepseek41-dspark")  # architectures of ds4's own DSpark files
# below which DeepSeek's drafts end where the user does not say, as in ds4: where drafts may decide, and where they may not
DEEPSEEK_CONFIDENCE: Final = {"opportunistic": 0.7, "exact": 0.8}


def open_draft_simple(config: SpecConfig, target: Target, g: GgufFile | None, notice: Notice | None) -> Opened:
    from ds4py.drafters.draft_context import DraftModel
    from ds4py.drafters.draft_simple import DraftSimple
    from ds4py.drafters.vocabulary import check_vocabulary
    from ds4py.kernels import open_kernels
    from ds4py.models import load_model

    assert g is not None, "SpecConfig refuses draft-simple without a file"
    check_vocabulary(target.gguf, g)
    kernels = target.kernels
    if config.draft_cpus or (config.draft_threads is not None and config.draft_threads != kernels.n_threads):
        with running_on(config.draft_cpus):  # its threads are started there, and stay
            kernels = open_kernels("auto", threads=config.draft_threads, max_rows=kernels.max_rows)
    model = load_model(g, kernels)
    n_ctx = min(target.n_ctx, model.n_ctx_train)
    draft = DraftModel(model, n_ctx, target.vocab_size, f"{identity(g)} {kernels.name}", config.draft_cpus)
    n_max = N_MAX if config.n_max is None else config.n_max

    def make(opportunistic: bool, user: str) -> Drafter:
        return DraftSimple(draft, n_max, config.n_min, config.p_min, opportunistic, notice)

    price = model_price(target.gguf, g)
    return Opened(make, n_max, f"draft-simple with {g.path.name}", config.n_min, price=price)


def open_draft_dflash(config: SpecConfig, target: Target, g: GgufFile | None, notice: Notice | None) -> Opened:
    from ds4py.drafters.dflash import DFlashReader

    assert g is not None, "open_drafters refuses draft-dflash without a file"
    draft, t = _open_dflash(config, target, g)
    t.refuse_unused()
    limits, clamped = _limits(config, draft.n_max, config.p_min)
    reader = DFlashReader(draft, measured=config.p_min > 0)

    def make(opportunistic: bool, user: str) -> Drafter:
        return BlockDrafter(draft, reader, limits, opportunistic)

    price = block_price(target.gguf, g, draft.network.block_size)
    return Opened(make, limits.n_max, f"draft-dflash with {g.path.name}{clamped}", limits.n_min, price=price)


def open_draft_dspark(config: SpecConfig, target: Target, g: GgufFile | None, notice: Notice | None) -> Opened:
    from ds4py.drafters.dspark import ConfidenceHead, DSparkReader, MarkovHead

    assert g is not None, "open_drafters refuses draft-dspark without a file"
    conf_min, unsure = config.conf_min, ""
    if is_deepseek(g):
        draft, t, last, unsure = _open_deepseek(config, target, g)
        markov, name = MarkovHead.read(t, draft, f"{last}.markov_head."), f"{last}.confidence_head.proj"
        conf_min = DEEPSEEK_CONFIDENCE[config.accept] if conf_min is None else conf_min
    else:
        draft, t = _open_dflash(config, target, g)
        markov, name = MarkovHead.read(t, draft), "conf_proj"
    confidence = ConfidenceHead.read(t, draft.network.output.shape[1], markov.w1.row_len, name)
    t.refuse_unused()
    if config.conf_min and confidence is None:
        raise UnsupportedError(
            f"{g.path} has no confidence head, so --spec-draft-conf-min cannot be obeyed: leave it out, or use "
            "--spec-draft-p-min, which goes by the probability of the likeliest token"
        )
    limits, clamped = _limits(config, draft.n_max, conf_min if conf_min and confidence else config.p_min)
    reader = DSparkReader(draft, markov, confidence, limits.least > 0, config.candidates)

    def make(opportunistic: bool, user: str) -> Drafter:
        return BlockDrafter(draft, reader, limits, opportunistic)

    counted = "ds4" if is_deepseek(g) else "adaptive"
    price = block_price(target.gguf, g, draft.network.block_size)
    return Opened(make, limits.n_max, f"draft-dspark with {g.path.name}{clamped}", limits.n_min, counted, price, unsure)


def open_draft_eagle3(config: SpecConfig, target: Target, g: GgufFile | None, notice: Notice | None) -> Opened:
    from ds4py.drafters.eagle3 import eagle_draft
    from ds4py.drafters.recurrent import Recurrent
    from ds4py.models.eagle3 import Model

    assert g is not None, "open_drafters refuses draft-eagle3 without a file"
    model, kernels = _listened(config, target, g), target.kernels
    t = Tensors(g, kernels)
    network = Model(g, t, Lender.of(model, target.gguf.path.name))
    t.refuse_unused()
    limits, _ = _limits(config, kernels.max_rows - 2, config.p_min, default=N_MAX)
    identified = f"{identity(g)} {kernels.name}"
    draft = eagle_draft(network, kernels, target.n_ctx, target.vocab_size, limits.n_max, model.kv_dtype, identified)
    measure = top_probability if limits.least > 0 else None

    def make(opportunistic: bool, user: str) -> Drafter:
        return Recurrent(draft, limits, opportunistic, measure)

    return Opened(make, limits.n_max, f"draft-eagle3 with {g.path.name}", limits.n_min, price=model_price(target.gguf, g))


def open_draft_mtp(config: SpecConfig, target: Target, g: GgufFile | None, notice: Notice | None) -> Opened:
    from ds4py.drafters.mtp import NAME, lead, mtp_draft, odds
    from ds4py.drafters.recurrent import Recurrent
    from ds4py.models.deepseek4_dspark import check_origin
    from ds4py.models.deepseek4_mtp import Model

    assert g is not None, "open_drafters refuses draft-mtp without a file"
    model, kernels = _listened(config, target, g), target.kernels
    flash = _flash(target, model, g)
    unsure = check_origin(g, target.gguf, "preview")
    t = Tensors(g, kernels)
    network = Model(t, flash)
    t.refuse_unused()
    margin = config.margin or 0.0
    limits, _ = _limits(config, kernels.max_rows - 2, config.p_min or (odds(margin) if margin else 0.0), default=N_MAX)
    identified = f"{identity(g)} {kernels.name}"
    draft = mtp_draft(network, kernels, target.n_ctx, target.vocab_size, limits.n_max, model.kv_dtype, identified)
    measure = top_probability if config.p_min else lead if margin else None

    def make(opportunistic: bool, user: str) -> Drafter:
        return Recurrent(draft, limits, opportunistic, measure)

    price = model_price(target.gguf, g)
    return Opened(make, limits.n_max, f"{NAME} with {g.path.name}", limits.n_min, price=price, unsure=unsure)


def is_deepseek(g: GgufFile) -> bool:
    """Whether `g` is DeepSeek V4's form of a DSpark draft."""
    from ds4py.models.deepseek4_dspark import is_support

    return g.architecture in DEEPSEEK_SUPPORT or is_support(g)


def _open_dflash(config: SpecConfig, target: Target, g: GgufFile) -> tuple[BlockDraft, Tensors]:
    """The network that DFlash and DSpark share, and the tensors of which their heads are still to be taken."""
    from ds4py.models.dflash import Model

    model, t = _listened(config, target, g), Tensors(g, target.kernels)
    return _block_draft(target, model, g, Model(g, t, Lender.of(model, target.gguf.path.name))), t


def _open_deepseek(config: SpecConfig, target: Target, g: GgufFile) -> tuple[BlockDraft, Tensors, str, str]:
    """The stages of DeepSeek V4's draft, the tensors of which its heads are still to be taken, their prefix; what is unsure."""
    from ds4py.models.deepseek4_dspark import Model, canonical, check_pair

    model = _listened(config, target, g)
    flash = _flash(target, model, g)
    unsure = check_pair(g, target.gguf, flash.config)
    g = canonical(g)
    t = Tensors(g, target.kernels)
    network = Model(g, t, flash)
    return _block_draft(target, model, g, network), t, network.last, unsure


def _flash(target: Target, model: LoadedModel, g: GgufFile) -> Flash:
    """The target's network, for a draft that is made of its blocks."""
    from ds4py.models.deepseek4 import Model as Flash

    if not isinstance(model.network, Flash):
        raise UnsupportedError(f"{g.path} drafts for DeepSeek V4 Flash, and {target.gguf.path.name} is no such model")
    return model.network


def _block_draft(target: Target, model: LoadedModel, g: GgufFile, network: Network) -> BlockDraft:
    kernels = target.kernels
    if network.block_size > kernels.max_rows:
        raise UnsupportedError(
            f"{g.path}: blocks of {network.block_size} tokens are more than a forward of {kernels.max_rows} rows"
        )
    identified = f"{identity(g)} {kernels.name}"
    draft = BlockDraft(network, kernels, target.n_ctx, target.vocab_size, model.kv_dtype, identity=identified)
    kernels.ready((draft, "inject"), network.inject)
    kernels.ready((draft, "block"), network.block)
    return draft


def _listened(config: SpecConfig, target: Target, g: GgufFile) -> LoadedModel:
    """The target's model, for a draft that borrows from it and listens to it, on its kernels."""
    if target.model is None:
        raise UnsupportedError(f"{g.path} drafts with the help of a loaded model, and there is none")
    if config.draft_cpus is not None:
        raise UsageError(f"{g.path.name} runs on the threads of the model it drafts for: place both with --cpu-mask")
    if config.draft_threads is not None and config.draft_threads != target.kernels.n_threads:
        raise UsageError(
            f"{g.path.name} shares weights with the model it drafts for and runs on its {target.kernels.n_threads} threads: "
            "leave --spec-draft-threads out"
        )
    return target.model


def _limits(config: SpecConfig, most: int, least: float, default: int | None = None) -> tuple[Limits, str]:
    """Lengths of drafts that can be `most` tokens, and what the user is told if that is less than was asked for."""
    asked = config.n_max if config.n_max is not None else most if default is None else default
    clamped = f" (which drafts {most} tokens at most)" if asked > most else ""
    return Limits(min(asked, most), min(config.n_min, most), least), clamped
