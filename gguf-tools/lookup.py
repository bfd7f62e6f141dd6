#!/usr/bin/env python3
"""Lookup caches for ngram-cache: `lookup.py create -m MODEL -f TEXT -o FILE`, `lookup.py merge FILE FILE -o FILE`."""

import sys

from ds4py.cli.lookup_tool import main

sys.exit(main())
