"""Lines for the person, or the log, that watches a replica."""

import sys


def say(text: str) -> None:
    """Write one line to the standard error stream, at once."""
    sys.stderr.write(f"millrace: {text}\n")
    sys.stderr.flush()
