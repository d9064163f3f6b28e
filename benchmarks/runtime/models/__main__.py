"""`python -m benchmarks.runtime.models FOLDER`: writes a checkpoint that engines are compared at."""

import argparse
import sys
from pathlib import Path

from benchmarks.runtime.models.checkpoint import write_model
from benchmarks.runtime.models.subjects import SUBJECTS


def main(argv: list[str]) -> int:
    """Write the model."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.runtime.models", description=__doc__)
    parser.add_argument("--shape", choices=SUBJECTS, default="llama", help="(default: %(default)s)")
    parser.add_argument("folder", type=Path, help="a folder that is not there yet")
    arguments = parser.parse_args(argv)
    if arguments.folder.exists():
        parser.error(f"{arguments.folder} exists: name another folder, or remove it")
    write_model(arguments.folder, SUBJECTS[arguments.shape].shape)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
