#!/usr/bin/env python3
"""The parts of a split model to one file: `merge.py FIRST-00001-of-0000N.gguf OUT.gguf`."""

import sys

from ds4py.cli.gguf_tools import merge_main

sys.exit(merge_main())
