"""Rows that look inside instead of chatting; each is a mode that prints and leaves: topic "diagnostics"."""

from __future__ import annotations

from ds4py.cli.option import Option, Range

_TOPIC = ("diagnostics",)
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
    Option(
        "--imatrix-dataset",
        "collect an importance matrix over this text: rendered prompts with ds4's marker lines, .jsonl, or plain text",
        "file",
        metavar="FILE",
        topics=_TOPIC,
    ),
    Option(
        "--imatrix-out",
        "where it goes: llama.cpp's GGUF form for *.gguf, else its legacy form",
        "file",
        metavar="FILE",
        topics=_TOPIC,
    ),
    Option("--imatrix-max-prompts", "most prompts to read", "int", metavar="N", range=Range(1), topics=_TOPIC),
    Option("--imatrix-max-tokens", "most tokens to read", "int", metavar="N", range=Range(1), topics=_TOPIC),
    Option(
        "--imatrix-min-expert-samples",
        "matrices that fewer tokens reached count as unknown, not as measured",
        "int",
        metavar="N",
        default=1,
        range=Range(0),
        topics=_TOPIC,
    ),
    # --- refused ---------------------------------------------------------------------------------------------------------
    Option("--head-test", "GPU check", topics=_TOPIC, status="never", why=_METAL),
    Option("--first-token-test", "GPU check", topics=_TOPIC, status="never", why=_METAL),
    Option("--metal-graph-test", "GPU check", topics=_TOPIC, status="never", why=_METAL),
    Option("--metal-graph-full-test", "GPU check", topics=_TOPIC, status="never", why=_METAL),
    Option("--metal-graph-prompt-test", "GPU check", topics=_TOPIC, status="never", why=_METAL),
)
