"""`--imatrix-dataset FILE --imatrix-out FILE`: collect an importance matrix over a text.

The output file is opened for writing only at the end, so whether its folder can be written is asked before the model is loaded.
"""

from __future__ import annotations

import os
from pathlib import Path

from ds4py.cli.answering import progress
from ds4py.cli.files import read_text
from ds4py.cli.opening import open_engine, open_tokenizer
from ds4py.cli.parsing import Values
from ds4py.cli.terminal import Terminal
from ds4py.errors import ResourceError, UnsupportedError
from ds4py.gguf import GgufFile
from ds4py.quantize.collect import Limits, collect
from ds4py.quantize.dataset import cut
from ds4py.quantize.imatrix import CHUNK, write_imatrix


def collect_imatrix(values: Values, g: GgufFile, log: Terminal) -> int:
    """Run the text through the model and write the file; the exit code."""
    source, out = values.text("imatrix_dataset"), Path(values.text("imatrix_out"))
    if not out.parent.is_dir() or not os.access(out.parent, os.W_OK):
        raise ResourceError(f"{out}: its folder is missing or cannot be written")
    if values.text("backend") == "reference":
        raise UnsupportedError("--backend reference cannot collect an importance matrix; the CPU backend does")
    limits = Limits(
        values.integer("imatrix_max_prompts") if values.has("imatrix_max_prompts") else None,
        values.integer("imatrix_max_tokens") if values.has("imatrix_max_tokens") else None,
        values.integer("imatrix_min_expert_samples"),
        min(CHUNK, int(g.get("context_length", CHUNK, int)) or CHUNK),
    )
    prompts = cut(read_text(source), source)[: limits.max_prompts]
    tokenizer = open_tokenizer(g, log)
    ids = [tokenizer.encode(prompt.text, add_bos=True, special=prompt.rendered) for prompt in prompts]
    engine = open_engine(values, g, limits.chunk_len, log)
    found = collect(engine.model, engine.kernels, ids, Path(source).name, limits, progress(log, "ds4: imatrix"))
    write_imatrix(out, found.imatrix)
    for name in found.too_few:
        log.say(f"ds4: {name}: fewer than {limits.min_samples} samples, written as unknown")
    entries = len(found.imatrix.entries)
    log.say(f"ds4: imatrix: {found.n_tokens} tokens of {len(prompts)} prompt(s), {entries} entries: {out}")
    return 0
