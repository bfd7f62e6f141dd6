#!/bin/sh
# Fetches a model for ds4: finds a Python that has ds4py and hands over to ds4-download, which does the work.
# Usage: ./download_model.sh TARGET    (demo, a name of --list, hf:REPO[:QUANT]; --dry-run, --help)
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd) || exit 1
for python in "$here/.venv/bin/python" "${VIRTUAL_ENV:-$here/.venv}/bin/python" python3 python; do
    if command -v "$python" >/dev/null 2>&1 && "$python" -c 'import ds4py.cli.download' >/dev/null 2>&1; then
        exec "$python" -m ds4py.cli.download "$@"
    fi
done
# Nothing is installed yet: the download needs only this checkout and a Python with pip.
for python in python3 python; do
    if command -v "$python" >/dev/null 2>&1 && PYTHONPATH="$here" "$python" -c 'import ds4py.cli.download' >/dev/null 2>&1; then
        PYTHONPATH="$here" exec "$python" -m ds4py.cli.download "$@"
    fi
done
echo "download_model.sh: no Python 3.11+ was found; install one, then: python3 -m venv .venv && .venv/bin/pip install -e ." >&2
exit 1
