"""Peak memory (VmHWM: mapped pages included) of a ds4 that streams experts: under the experts' size, or exit code 1.

    python tests/scripts/streaming_memory.py [--gigabytes 1.5] [--cache 0.1GB] [--folder DIR]

Makes a DeepSeek V4 file of tiny dimensions whose experts are so large together, reads a prompt that takes almost all of them and
generates, once with a cache of experts and once without: the first must stay below the experts' size, the second shows that the
same run exceeds it when nothing is bounded. Both texts are the same.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from large_mixture import write_large_mixture

CHILD = """
import sys
from ds4py.cli.chat import main
code = main(sys.argv[1:])
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")), file=sys.stderr)
sys.exit(code)
"""
RUN = ["--raw", "--temp", "0", "-n", "24", "-c", "1000", "-t", "2", "--ignore-eos"]


def run(model: Path, *options: str) -> tuple[str, int, float]:
    """(the text, peak bytes, gigabytes of experts read) of one ds4."""
    prompt = " ".join(f"{n * n % 9973:x}" for n in range(120))
    words = [sys.executable, "-c", CHILD, "-m", str(model), *RUN, "-p", prompt, *options]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    read = re.search(r"([\d.]+) GB read", done.stderr)
    return done.stdout, int(done.stderr.split()[-1]) * 1024, float(read[1]) if read else 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.5)
    parser.add_argument("--cache", default="0.1GB")
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        model = Path(folder) / "many.gguf"
        n_bytes = write_large_mixture(model, int(options.gigabytes * 1e9))
        text, bounded, read = run(model, "--ssd-streaming-cache-experts", options.cache)
        same, free, _ = run(model)
    print(f"experts {n_bytes / 1e6:.0f} MB; peak memory {bounded / 1e6:.0f} MB streamed, {free / 1e6:.0f} MB not", end="; ")
    print(f"{read:.2f} GB read; texts", "equal" if text == same else "DIFFER")
    met = bounded < n_bytes < free and read > 0.8 * n_bytes / 1e9 and text == same
    print("met" if met else "NOT MET")
    return int(not met)


if __name__ == "__main__":
    sys.exit(main())
