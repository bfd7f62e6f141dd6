"""Run installed clients against our server on a script, with and without drafts, and say which versions passed.

    python tests/clients/run.py [NAME ...]        # all that are installed; those that are not are named
    python tests/clients/run.py --programs DIR    # Codex, Claude Code and opencode from DIR/node_modules/.bin (see programs.py)
    python tests/clients/run.py --model FILE      # openai and anthropic against ds4-server on a real model (see real_model.py)

Exit code 0 if nothing failed. Clients that would look for updates or send traces are told not to.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
import traceback
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1])]

# name on the command line -> (package, module here)
CLIENTS = {
    "openai-agents": ("openai-agents", "with_agents"),
    "litellm": ("litellm", "with_litellm"),
    "langchain-openai": ("langchain-openai", "with_langchain"),
    "pydantic-ai": ("pydantic-ai-slim", "with_pydantic_ai"),
    "llm": ("llm", "with_llm"),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *CLIENTS], default=[])
    parser.add_argument("--programs", type=Path, help="folder with node_modules")
    parser.add_argument("--model", type=Path, help="a GGUF file")
    parser.add_argument("--options", default="", help="more of ds4-server's options, with --model")
    asked = parser.parse_args()
    os.environ.update(LITELLM_LOCAL_MODEL_COST_MAP="True", OPENAI_API_KEY="x", OPENAI_AGENTS_DISABLE_TRACING="1")
    if asked.model is not None:
        import real_model

        return min(real_model.run(asked.model, asked.options.split()), 1)
    if asked.programs is not None:
        import programs

        return programs.run(asked.programs)
    return sum(_failures(name) for name in asked.names or CLIENTS) and 1


def _failures(name: str) -> int:
    """Run one client twice; how often it failed."""
    from client_scenarios import SCRIPT
    from scripted_server import copying, plain, serving

    package, module = CLIENTS[name]
    try:
        found = version(package)
    except PackageNotFoundError:
        print(f"{name}: not installed (pip install {package})")
        return 0
    failures = 0
    for how, equip in (("plain", plain), ("drafting", copying())):
        began, outcome = time.monotonic(), "passed"
        with serving(SCRIPT, equip=equip) as server:
            try:
                importlib.import_module(module).run(server)
            except Exception:
                traceback.print_exc()
                failures, outcome = failures + 1, "FAILED"
            print(f"{name} {found}, {how}: {outcome} in {time.monotonic() - began:.1f} s", flush=True)
    return failures


if __name__ == "__main__":
    sys.exit(main())
