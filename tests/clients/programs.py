"""Claude Code, Codex and opencode against our server on a script: opt-in, since they are a gigabyte of npm packages.

    npm install --ignore-scripts @anthropic-ai/claude-code @openai/codex opencode-ai     # in DIR
    python tests/clients/run.py --programs DIR

Each runs with an empty HOME and no other environment, in a folder of its own. What is looked at: exit code, what it printed, the
file that a tool wrote, how many requests came, how much of the second prompt was cached.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from scripted_server import Scripted, calls_of, copying, plain, reply, serving

CODEX = """model = "m"
model_provider = "local"
[model_providers.local]
name = "local"
base_url = "{url}/v1"
wire_api = "responses"
"""


# Where npm puts what is to be run: native binaries, which come without any script of the packages, or a script for node.
BINARIES = {
    "claude": "@anthropic-ai/claude-code-linux-x64/claude",
    "codex": "@openai/codex/bin/codex.js",
    "opencode": "opencode-linux-x64/bin/opencode",
}


class Place:
    """A folder for one run: HOME, a workspace, and the program in it."""

    def __init__(self, root: str, name: str, binary: Path) -> None:
        self.home, self.work, self.bin = Path(root, "home"), Path(root, "ws"), Path(root, "bin")
        for folder in (self.home, self.work, self.bin):
            folder.mkdir()
        (self.bin / name).symlink_to(binary)

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        whole = {"HOME": str(self.home), "PATH": f"{self.bin}:{os.environ['PATH']}", "TERM": "dumb", **environment}
        quiet: Any = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL, "timeout": 240}
        return subprocess.run(command, cwd=self.work, env=whole, **quiet)


def claude(place: Place, prompt: str, url: str) -> subprocess.CompletedProcess[str]:
    return place.run(
        *("claude", "-p", prompt, "--output-format", "json", "--allowedTools", "Write"),
        ANTHROPIC_BASE_URL=url,
        ANTHROPIC_AUTH_TOKEN="x",
        ANTHROPIC_MODEL="m",
        ANTHROPIC_DEFAULT_HAIKU_MODEL="m",
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
        DISABLE_AUTOUPDATER="1",
    )


def codex(place: Place, prompt: str, url: str) -> subprocess.CompletedProcess[str]:
    folder = place.home / ".codex"
    folder.mkdir(exist_ok=True)
    (folder / "config.toml").write_text(CODEX.format(url=url))
    return place.run("codex", "exec", "--skip-git-repo-check", "-s", "danger-full-access", prompt)


def opencode(place: Place, prompt: str, url: str) -> subprocess.CompletedProcess[str]:
    config = {
        "provider": {
            "local": {
                "npm": "@ai-sdk/openai-compatible",
                "options": {"baseURL": f"{url}/v1", "apiKey": "x"},
                "models": {"m": {"limit": {"context": 200000, "output": 8000}}},
            }
        },
        "model": "local/m",
        "small_model": "local/m",
        "autoupdate": False,
        "share": "disabled",
    }
    (place.work / "opencode.json").write_text(json.dumps(config))
    return place.run("opencode", "run", prompt)


Runner = Callable[[Place, str, str], subprocess.CompletedProcess[str]]
PROGRAMS: Mapping[str, tuple[Runner, Callable[[Path], tuple[str, Any]]]] = {
    "claude": (claude, lambda work: ("Write", {"file_path": f"{work}/out.txt", "content": "hello"})),
    "codex": (codex, lambda work: ("exec_command", {"cmd": "printf hello > out.txt"})),
    "opencode": (opencode, lambda work: ("write", {"filePath": f"{work}/out.txt", "content": "hello"})),
}


def run(folder: Path) -> int:
    """Run all three; 1 if anything failed."""
    failures = 0
    for name, (runner, tool) in PROGRAMS.items():
        binary = folder.resolve() / "node_modules" / BINARIES[name]
        if not binary.exists():
            print(f"{name}: there is no {binary}")
            continue
        found = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=60).stdout.strip()
        for how, equip in (("plain", plain), ("drafting", copying())):
            began = time.monotonic()
            try:
                words = _try(name, binary, runner, tool, equip)
            except Exception:
                traceback.print_exc()
                failures += 1
                words = "FAILED"
            print(f"{name} {found}, {how}: {words}, {time.monotonic() - began:.1f} s", flush=True)
    return 1 if failures else 0


def _try(name: str, binary: Path, runner: Runner, tool: Callable[[Path], tuple[str, Any]], equip: Any) -> str:
    """A tool that writes a file, then words; then the same greeting in two runs."""
    with tempfile.TemporaryDirectory() as root:
        place = Place(root, name, binary)
        called, arguments = tool(place.work)
        calls = calls_of((called, json.dumps(arguments)))
        script = {
            "replies": [
                reply("A title", when="You are a title generator"),
                reply("It is ", "written.", when="<|im_start|>user\n<tool_response>"),
                reply("<think>", "I will write", "</think>", "\n\n", *calls, when="write hello"),
                reply("Hello ", "back!"),
            ]
        }
        with serving(script, n_ctx=400_000, equip=equip) as server:
            done = runner(place, "write hello to out.txt", server.url)
            _expect(done.returncode == 0 and "It is written." in done.stdout, done, server)
            _expect((place.work / "out.txt").read_text() == "hello", done, server)
            n_first = len(server.prompts)
            greeting = runner(place, "say something", server.url)
            _expect(greeting.returncode == 0 and "Hello back!" in greeting.stdout, greeting, server)
            again = runner(place, "say something", server.url)
            _expect(again.returncode == 0 and "Hello back!" in again.stdout, again, server)
            n_prompt, n_cached = _last_prompt(server)
            n_all = len(server.prompts)
        if name == "codex":
            _calls_in_a_namespace(binary, equip)
        n_refused = _too_long(name, binary, runner, equip)
        n_retried = _fails_once(name, binary, runner, equip)
        return (
            f"passed, {n_first} requests for the tool, {n_all} in all, {n_cached} of {n_prompt} tokens cached at last, "
            f"{n_refused} requests with a prompt that is too long, {n_retried} until a server that fails once answers"
        )


def _calls_in_a_namespace(binary: Path, equip: Any) -> None:
    """Codex has some of its tools in a namespace: a call of one reaches the tool, which knows no such agent."""
    calls = calls_of(("multi_agent_v1__close_agent", '{"target": "abc"}'))
    script = {"replies": [reply("I see.", when="<tool_response>\ninvalid agent id"), reply(*calls)]}
    with tempfile.TemporaryDirectory() as root, serving(script, n_ctx=400_000, equip=equip) as server:
        done = codex(Place(root, "codex", binary), "close agent abc", server.url)
        _expect(done.returncode == 0 and "I see." in done.stdout and len(server.prompts) == 2, done, server)


def _too_long(name: str, binary: Path, runner: Runner, equip: Any) -> int:
    """A context that the program's instructions do not fit: how many requests it makes, which may not be many."""
    with tempfile.TemporaryDirectory() as root, serving({"replies": [reply("x")]}, n_ctx=2000, equip=equip) as server:
        done = runner(Place(root, name, binary), "say something", server.url)
        n_refused = sum("maximum context length" in line for line in server.lines)
        told = any(words in done.stdout + done.stderr for words in ("2000", "ran out of room", "too long"))
        _expect(told and 1 <= n_refused <= 5, done, server)  # opencode tries to make its conversation shorter in between
        return n_refused


def _fails_once(name: str, binary: Path, runner: Runner, equip: Any) -> int:
    """A server that fails at the first request: the program comes back and gets its answer."""
    title = reply("A title", when="You are a title generator")
    script = {"replies": [title, reply("so", fail=True, once=True), reply("Hello ", "back!")]}
    with tempfile.TemporaryDirectory() as root, serving(script, n_ctx=400_000, equip=equip) as server:
        done = runner(Place(root, name, binary), "say something", server.url)
        _expect(done.returncode == 0 and "Hello back!" in done.stdout, done, server)
        return len(server.prompts)


def _last_prompt(server: Scripted) -> tuple[int, int]:
    """(tokens of the longest prompt of the last run, of them cached), from the log."""
    words = [line.split() for line in server.lines if ": stop, prompt " in line]
    sizes = [(int(line[line.index("prompt") + 1]), int(line[line.index("(cached") + 1].rstrip("),"))) for line in words]
    return max(sizes[-2:])


def _expect(holds: bool, done: subprocess.CompletedProcess[str], server: Scripted) -> None:
    if not holds:
        shown = f"{done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}\n" + "\n".join(server.lines[-12:])
        raise AssertionError(shown)
