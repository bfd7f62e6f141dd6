"""Rows that look inside instead of chatting; each is a mode that prints and leaves: topic "diagnostics"."""

from __future__ import annotations

from ds4py.cli.option import Option, Range

_TOPIC = ("diagnostics",)
_IMATRIX = "it comes with quantization"
_METAL = "it checks the Metal backend, which does not exist here"

ROWS: tuple[Option, ...] = (
    Option("--inspect", "print what the model file holds and which drafters it could use", topics=_TOPIC),
    Option("--show-prompt", "print the prompt as the chat format renders it", topics=_TOPIC),
    Option("--dump-tokens", "print the prompt's token ids and pieces", topics=_TOPIC),
    Option("--dump-logits", "write the logits after the prompt as JSON", "file", metavar="FILE", topics=_TOPIC),
    Option(
        "--dump-logprobs", "write a greedy continuation with its likeliest tokens as JSON", "file", metavar="FILE", topics=_TOPIC
    ),
    Option("--logprobs-top-k", "tokens listed per step", "int", metavar="N", default=20, range=Range(1, 128), topics=_TOPIC),
    Option(
        "--decode-consistency",
        "decode N tokens, prefill them again, compare the likeliest",
        "int",
        (),
        "N",
        range=Range(1),
        topics=_TOPIC,
    ),
    Option("--perplexity-file", "perplexity of a text after its first 32 tokens", "file", metavar="FILE", topics=_TOPIC),
    # --- refused ---------------------------------------------------------------------------------------------------------
    Option("--imatrix-dataset", "calibration text", "file", metavar="FILE", topics=_TOPIC, status="later", why=_IMATRIX),
    Option("--imatrix-out", "importance matrix", "file", metavar="FILE", topics=_TOPIC, status="later", why=_IMATRIX),
    Option("--imatrix-max-prompts", "limit", "int", metavar="N", topics=_TOPIC, status="later", why=_IMATRIX),
    Option("--imatrix-max-tokens", "limit", "int", metavar="N", topics=_TOPIC, status="later", why=_IMATRIX),
    Option("--imatrix-min-expert-samples", "limit", "int", metavar="N", topics=_TOPIC, status="later", why=_IMATRIX),
    Option("--head-test", "GPU check", topics=_TOPIC, status="never", why=_METAL),
    Option("--first-token-test", "GPU check", topics=_TOPIC, status="never", why=_METAL),
    Option("--metal-graph-test", "GPU check", topics=_TOPIC, status="never", why=_METAL),
    Option("--metal-graph-full-test", "GPU check", topics=_TOPIC, status="never", why=_METAL),
    Option("--metal-graph-prompt-test", "GPU check", topics=_TOPIC, status="never", why=_METAL),
)
