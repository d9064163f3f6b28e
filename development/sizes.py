"""`python -m development.sizes`: no source file and no folder is larger than a reader can take in."""

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("operator", "runtime", "kernels")
MOST_LINES = 300
MOST_FILES = 20


def find_excesses(root: Path) -> Iterator[str]:
    """Yield a line for each Python file and each folder below the sources that is too large."""
    files = sorted(path for source in SOURCES for path in (root / source).rglob("*.py"))
    for path in files:
        num_lines = len(path.read_text().splitlines())
        if num_lines > MOST_LINES:
            yield f"{path.relative_to(root)}: {num_lines} lines, at most {MOST_LINES}: split it by subjects"
    for folder, count in Counter(path.parent for path in files).items():
        if count > MOST_FILES:
            yield f"{folder.relative_to(root)}/: {count} files, at most {MOST_FILES}: give a subject a folder"


def main() -> int:
    """Print what is too large; return whether there is anything."""
    found = list(find_excesses(ROOT))
    print("\n".join(found) or "sources: no file and no folder is too large")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
