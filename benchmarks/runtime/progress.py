"""Lines for the person who waits; the standard output is the result's alone."""

import sys


def report(text: str) -> None:
    """Write one line to the standard error stream, at once."""
    sys.stderr.write(f"  {text}\n")
    sys.stderr.flush()
