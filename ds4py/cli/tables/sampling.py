"""Rows about the prompt, the chat format, thinking and how a token is drawn: topic "sampling"."""

from __future__ import annotations

from ds4py.cli.option import Option, Range

_TOPIC = ("sampling",)

ROWS: tuple[Option, ...] = (
    Option("--prompt", "answer this and leave (without it: interactive chat)", "text", ("-p",), "TEXT", topics=_TOPIC),
    Option("--prompt-file", "the prompt is this file; - reads standard input", "file", ("-f", "--file"), "FILE", topics=_TOPIC),
    Option(
        "--prefix-file", "earlier turns: USER: and ASSISTANT: at line starts, alternating", "file", metavar="FILE", topics=_TOPIC
    ),
    Option(
        "--system",
        'system prompt; "" sends none',
        "text",
        ("-sys", "--system-prompt"),
        "TEXT",
        "You are a helpful assistant",
        topics=_TOPIC,
    ),
    Option(
        "--raw",
        "tokenise the prompt as it is, no chat markers",
        aliases=("--raw-prompt", "-no-cnv", "--no-conversation"),
        topics=_TOPIC,
    ),
    Option(
        "--tokens",
        "most tokens to generate; -1 = until the context is full",
        "int",
        ("-n", "--n-predict", "--predict"),
        "N",
        50000,
        range=Range(1, None, also=(-1,)),
        env=("LLAMA_ARG_N_PREDICT",),
        topics=_TOPIC,
    ),
    Option(
        "--temp",
        "temperature; 0 = always the likeliest token",
        "float",
        ("--temperature",),
        "F",
        1.0,
        range=Range(0),
        topics=_TOPIC,
    ),
    Option(
        "--top-k",
        "draw among the K likeliest; 0 = all",
        "int",
        metavar="K",
        default=0,
        range=Range(0),
        topics=_TOPIC,
        env=("LLAMA_ARG_TOP_K",),
    ),
    Option(
        "--top-p", "draw among the likeliest that sum to F", "float", (), "F", 1.0, "1.0, GLM 0.95", Range(0, 1), topics=_TOPIC
    ),
    Option(
        "--min-p", "drop tokens below F times the likeliest", "float", (), "F", 0.05, "0.05, GLM 0", Range(0, 1), topics=_TOPIC
    ),
    Option(
        "--seed",
        "same seed, same text; 0 = from clock and pid",
        "int",
        ("-s",),
        "N",
        0,
        range=Range(0, 2**64 - 1, also=(-1,)),
        topics=_TOPIC,
    ),
    Option(
        "--repeat-penalty",
        "divide the score of recent tokens; 1 = off",
        "float",
        (),
        "F",
        1.0,
        range=Range(0, above=True),
        topics=_TOPIC,
    ),
    Option(
        "--repeat-last-n",
        "how far penalties look back; -1 = everything",
        "int",
        (),
        "N",
        64,
        range=Range(0, also=(-1,)),
        topics=_TOPIC,
    ),
    Option("--presence-penalty", "lower tokens that occurred", "float", (), "F", 0.0, range=Range(), topics=_TOPIC),
    Option("--frequency-penalty", "lower tokens by how often they occurred", "float", (), "F", 0.0, range=Range(), topics=_TOPIC),
    Option("--logit-bias", "add to a token's score: 15043+1, 15043-inf", "text", ("-l",), "ID(+|-)F", repeat=True, topics=_TOPIC),
    Option("--ignore-eos", "never draw the end-of-sequence token", topics=_TOPIC),
    Option(
        "--reverse-prompt", "stop where the answer contains TEXT", "text", ("-r", "--stop"), "TEXT", repeat=True, topics=_TOPIC
    ),
    Option("--escape", r"read \n, \t, \\, \" in -p as those characters", aliases=("-e",), topics=_TOPIC),
    Option("--think", "let the model think first (the default where it can)", topics=_TOPIC),
    Option("--think-max", "as much thinking as the model offers", topics=_TOPIC),
    Option("--nothink", "no thinking", aliases=("--no-think",), topics=_TOPIC),
    Option(
        "--think-level",
        "thinking effort 0..100",
        "int",
        metavar="N",
        topics=_TOPIC,
        status="later",
        why="it comes with the DeepSeek V4.1 model",
    ),
    Option(
        "--chat-template-file",
        "use this Jinja template instead of the model's own",
        "file",
        metavar="FILE",
        env=("LLAMA_ARG_CHAT_TEMPLATE_FILE",),
        topics=_TOPIC,
    ),
    Option(
        "--chat-template",
        "use this Jinja template text instead of the model's own",
        "text",
        metavar="TEXT",
        env=("LLAMA_ARG_CHAT_TEMPLATE",),
        topics=_TOPIC,
    ),
    Option("--grammar", "each answer obeys this GBNF grammar", "text", metavar="GBNF", topics=_TOPIC),
    Option("--grammar-file", "each answer obeys the GBNF grammar in this file", "file", metavar="FILE", topics=_TOPIC),
    Option("--json-schema", "each answer is JSON of this schema; {} = any JSON", "text", ("-j",), "SCHEMA", topics=_TOPIC),
    Option("--json-schema-file", "each answer is JSON of the schema in this file", "file", ("-jf",), "FILE", topics=_TOPIC),
    Option(
        "--context-shift",
        "drop old text when the context is full",
        topics=_TOPIC,
        status="never",
        why="text is never dropped silently; give a larger -c",
    ),
)
