"""`python -m development.terminal_picture TRANSCRIPT PICTURE`: what a terminal showed, as an SVG.

The first line of a transcript is the command. The picture loads nothing from elsewhere.
"""

import re
import sys
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

WIDTH = 112
_FOREIGN_FONT = re.compile(r"@font-face \{.*?\}\n*", re.DOTALL)


def draw_terminal(transcript: str, title: str) -> str:
    """Return the picture of a transcript, its lines wrapped as a terminal of 112 columns does."""
    console = Console(record=True, width=WIDTH, file=StringIO())
    for line in transcript.splitlines():
        console.print(Text(line, style="bold" if line.startswith("$ ") else ""), overflow="fold")
    return _FOREIGN_FONT.sub("", console.export_svg(title=title))


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    transcript = source.read_text()
    target.write_text(draw_terminal(transcript, transcript.splitlines()[0].removeprefix("$ ")))
