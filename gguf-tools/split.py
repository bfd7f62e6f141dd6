#!/usr/bin/env python3
"""One GGUF file to several: `split.py FILE OUT --max-size 2G`."""

import sys

from ds4py.cli.gguf_tools import split_main

sys.exit(split_main())
