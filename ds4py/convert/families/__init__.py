"""Architectures that can be converted: one file each, and one line in `registry.py`."""
