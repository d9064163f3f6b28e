"""Ends a command that an older Python runs, on import: before what such a Python can't read is imported."""

import sys

MINIMUM_PYTHON = (3, 11)
if sys.version_info < MINIMUM_PYTHON:
    sys.exit(
        f"Millrace needs Python 3.11 or newer and this is {sys.version.split()[0]}; "
        "write: make PYTHON=/path/to/python3.11 …"
    )
