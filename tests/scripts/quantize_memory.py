"""Peak memory (VmHWM: mapped pages included) while ds4-quantize reads a large file: below 1 GB for 3 GB, or exit code 1.

    python tests/scripts/quantize_memory.py [--gigabytes 3] [--type Q8_0] [--threads 2] [--folder DIR]

The file is sparse, so only the output takes room on the disk; it is removed at the end.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from sparse_model import sparse_model

BOUND = 10**9
CHILD = """
import sys
from ds4py.cli.quantize import main
code = main(sys.argv[1:])
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
sys.exit(code)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=3.0)
    parser.add_argument("--type", default="Q8_0")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        source = sparse_model(Path(folder) / "in.gguf", int(options.gigabytes * 1e9))
        begun = time.perf_counter()
        words = [sys.executable, "-c", CHILD, str(source), f"{folder}/out.gguf", options.type, str(options.threads)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr)
        peak, seconds = int(done.stdout.split()[-1]) * 1024, time.perf_counter() - begun
        print(f"{source.stat().st_size:,} bytes to {options.type} in {seconds:.0f} s: peak memory {peak / 1e6:.0f} MB", end=" ")
        print("met" if peak < BOUND else "NOT MET")
    return int(peak >= BOUND)


if __name__ == "__main__":
    sys.exit(main())
