#!/usr/bin/env python3
"""Everything a GGUF file holds, as text or JSON: `inspect.py FILE [--json] [--full]`.

This file has the name of a module of Python's own, and the folder of a running script comes first where Python looks for modules.
So the folder is taken from the search path before anything else is imported; and when a script beside this one is running and
some library asks for `inspect`, it gets Python's own.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _HERE]

if __name__ != "__main__":
    import importlib

    del sys.modules[__name__]
    sys.modules[__name__] = importlib.import_module(__name__)
else:
    from ds4py.cli.gguf_tools import inspect_main

    sys.exit(inspect_main())
