"""Rows that only `ds4-convert` takes: a folder of safetensors to one GGUF file. Topic "convert"."""

from __future__ import annotations

from ds4py.cli.option import Option

_TOPIC = ("convert",)
_CONVERT = ("ds4-convert",)


def _flag(name: str, help: str) -> Option:
    return Option(name, help, topics=_TOPIC, commands=_CONVERT)


ROWS: tuple[Option, ...] = (
    Option(
        "--outfile",
        "the file to write",
        "file",
        ("-o", "--out"),
        "FILE",
        shown_default="NAME-TYPE.gguf in the folder",
        topics=_TOPIC,
        commands=_CONVERT,
    ),
    Option(
        "--outtype",
        "how matrices are stored; auto keeps what the checkpoint has (FP8 becomes bf16)",
        "text",
        metavar="TYPE",
        default="auto",
        choices=("f32", "f16", "bf16", "q8_0", "auto"),
        topics=_TOPIC,
        commands=_CONVERT,
    ),
    Option(
        "--dspark-out",
        "also write what drafts for the model and lies in the same folder (DSpark or MTP of DeepSeek V4)",
        "file",
        metavar="FILE",
        topics=_TOPIC,
        commands=_CONVERT,
    ),
    Option(
        "--target-model-dir",
        "for a draft (EAGLE-3, DFlash, DSpark): the folder of the model it is for, with config.json and tokenizer",
        "file",
        metavar="FOLDER",
        topics=_TOPIC,
        commands=_CONVERT,
    ),
    Option("--model-name", "name in the file (default: the folder's)", "text", metavar="NAME", topics=_TOPIC, commands=_CONVERT),
    Option(
        "--pre-tokenizer",
        "for a pre-tokenizer that is not recognised: the one it equals (tokenizer.ggml.pre)",
        "text",
        metavar="NAME",
        topics=_TOPIC,
        commands=_CONVERT,
    ),
    Option(
        "--drop",
        "leave out tensors or weight files whose name matches (* and ?); may be given several times",
        "text",
        metavar="PATTERN",
        repeat=True,
        topics=_TOPIC,
        commands=_CONVERT,
    ),
    _flag("--vocab-only", "write metadata and tokenizer without weights"),
    _flag("--resume", "keep what is done when the run stops, in FILE.partial, and go on from there when it is started again"),
    _flag("--dry-run", "show what would be written, and write nothing"),
    _flag("--overwrite", "replace the output file if it is there"),
)
