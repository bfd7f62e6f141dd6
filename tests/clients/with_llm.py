"""The `llm` command: a prompt, a conversation that goes on, a schema."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from scripted_server import Scripted

CONFIG = """- model_id: localm
  model_name: m
  api_base: {url}/v1
  can_stream: true
  supports_tools: true
  supports_schema: true
"""


def run(server: Scripted) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "extra-openai-models.yaml").write_text(CONFIG.format(url=server.url))
        environment = {"PATH": os.environ["PATH"], "HOME": folder, "LLM_USER_PATH": folder, "OPENAI_API_KEY": "x"}

        def ask(*arguments: str) -> str:
            command = [sys.executable, "-m", "llm", *arguments]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
            assert done.returncode == 0, done.stderr
            return done.stdout.strip()

        assert ask("-m", "localm", "#hello#") == "Hello, world!"
        assert ask("-m", "localm", "-c", "again") == "Hello, world!"
        assert server.prompts[-1].count("<|im_start|>user") == 2
        found = json.loads(ask("-m", "localm", "#json#", "--schema", "city, degrees int", "-o", "max_tokens", "400"))
        assert set(found) == {"city", "degrees"}, found
