#!/usr/bin/env python3
"""A DeepSeek V4 checkpoint to GGUF: `deepseek4_quantize.py --hf FOLDER --out FILE --quant q2 --dspark-out FILE`."""

import sys

from ds4py.cli.deepseek4_quantize import main

sys.exit(main())
