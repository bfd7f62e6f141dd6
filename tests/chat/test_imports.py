"""Start-up stays light: neither Jinja nor the tokenizers library is imported before it is used."""

from __future__ import annotations

import subprocess
import sys


def test_heavy_imports_are_lazy() -> None:
    code = "import sys, ds4py.chat, ds4py.tokenizer; print([m for m in ('jinja2', 'tokenizers', 'torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
