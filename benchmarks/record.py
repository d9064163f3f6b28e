"""A benchmark's result: what it says of its origin, and how it reaches a file."""

import argparse
import datetime as dt
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def read_commit() -> str:
    """Return the commit that is measured, with "-dirty" where files differ from it."""
    command = ["git", "describe", "--always", "--dirty"]
    said = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return said.stdout.strip() or "unknown"


def read_date() -> str:
    """Return the day, in UTC."""
    return dt.datetime.now(dt.UTC).date().isoformat()


def add_output(parser: argparse.ArgumentParser) -> None:
    """Give a benchmark the flag for its result's file."""
    parser.add_argument(
        "--output", type=_read_output, metavar="FILE", help="write the JSON line here too, at the end"
    )


def _read_output(text: str) -> Path:
    path = Path(text)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text} can't be written: name a file in a folder that exists")
    return path


def publish(result: Mapping[str, Any], output: Path | None) -> None:
    """Print the result as one JSON line, and write it to `output` where one is given."""
    line = json.dumps(result)
    print(line)
    if output is not None:
        output.write_text(line + "\n")
