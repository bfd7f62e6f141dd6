"""From a folder to a plan: a whole model, what drafts for it in the same folder, or a draft of its own."""

from __future__ import annotations

from pathlib import Path

from ds4py.convert.config import read_config
from ds4py.convert.drafts.plan import plan_draft
from ds4py.convert.drafts.registry import draft_classes, draft_family_of
from ds4py.convert.families.registry import is_known
from ds4py.convert.plan import Options, Plan, plan_model, plan_support
from ds4py.errors import UnsupportedError


def make_plan(folder: Path, options: Options) -> Plan:
    """Read all headers, configs and tokenizer files of `folder` and decide everything. Raises FormatError, UnsupportedError,
    ResourceError; UsageError for options that fit nothing."""
    config = read_config(folder)
    draft = draft_family_of(config)
    if draft is not None:
        return plan_draft(folder, config, draft, options)
    if options.target is not None and not is_known(config):
        known = ", ".join(draft_classes())
        raise UnsupportedError(f"{config.path}: {config.architecture!r:.80} is no draft that can be converted; there are {known}")
    return plan_model(folder, config, options)


def make_support_plan(folder: Path, options: Options) -> Plan:
    """As `make_plan`, for what drafts for the model and lies in the model's own folder."""
    return plan_support(folder, read_config(folder), options)
