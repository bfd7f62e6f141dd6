#!/usr/bin/env python3
"""A checkpoint folder to GGUF: `convert_hf_to_gguf.py FOLDER --outfile FILE --outtype TYPE`, which is ds4-convert."""

import sys

from ds4py.cli.convert import main

sys.exit(main())
