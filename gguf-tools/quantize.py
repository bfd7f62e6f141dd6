#!/usr/bin/env python3
"""A smaller GGUF file of one: `quantize.py IN.gguf OUT.gguf --type Q4_K_M`, which is ds4-quantize."""

import sys

from ds4py.cli.quantize import main

sys.exit(main())
