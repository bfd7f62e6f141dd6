"""Drafts that can be converted, to llama.cpp's `eagle3` and `dflash` files: one file each, and one line in `registry.py`."""
