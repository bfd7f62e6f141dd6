#!/usr/bin/env python3
"""Layers of one model file into another: `splice.py --base FILE --donor FILE --layers 37-42 --out FILE`."""

import sys

from ds4py.cli.gguf_tools import splice_main

sys.exit(splice_main())
