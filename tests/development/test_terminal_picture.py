"""The pictures of terminals show their transcripts, and load nothing."""

import html
import re
from pathlib import Path

import pytest

from development.terminal_picture import draw_terminal

PICTURES = Path(__file__).resolve().parents[2] / "docs" / "pictures"


def read_text(picture: str) -> str:
    """Return what a picture shows below its title, without spaces."""
    _, *lines = re.findall(r"<text[^>]*>([^<]*)</text>", picture)
    return "".join(html.unescape("".join(lines)).split())


@pytest.mark.parametrize("transcript", sorted(PICTURES.glob("*.txt")), ids=lambda path: path.stem)
def test_a_committed_picture_shows_its_transcript(transcript: Path) -> None:
    picture = transcript.with_suffix(".svg").read_text()
    assert read_text(picture) == "".join(transcript.read_text().split())


def test_a_picture_loads_nothing() -> None:
    assert "url(http" not in draw_terminal("$ make up\nup in 14 s", "make up").replace('"', "")


def test_a_long_line_is_wrapped() -> None:
    assert read_text(draw_terminal("a" * 250, "a")) == "a" * 250
