"""The text that a parser reads, which comes in pieces that are cut anywhere."""

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from millrace_runtime.chat.parsers.answer import AnswerDelta, DeltaBuilder

SPACE = re.compile(r"\s*", re.ASCII)
MAX_NAME = 256
"""Letters of a name outside JSON. More is no name, and is held back no longer."""
MAX_HELD = 1 << 16
"""Letters of calls that are held back until they are whole. More are content."""


class Markers:
    """Strings: a parser looks for the first of them in a text. None is the beginning of another."""

    def __init__(self, *markers: str) -> None:
        beginnings = {marker[:size] for marker in markers for size in range(1, len(marker))}
        self._first = re.compile(_any_of({marker[0] for marker in markers}))
        self._whole = re.compile(_any_of(markers))
        self._begun = re.compile(f"(?:{_any_of(beginnings)})\\Z")
        self._max_begun = max(map(len, markers)) - 1

    def find_first(self, text: str, place: int) -> re.Match[str] | None:
        """Return the first letter that a marker begins with. Most pieces have none."""
        return self._first.search(text, place)

    def find(self, text: str, place: int) -> re.Match[str] | None:
        """Return the first marker at or behind `place`."""
        return self._whole.search(text, place)

    def find_within(self, text: str, place: int, most: int) -> re.Match[str] | None:
        """Return the first marker that begins at most so many letters behind `place`."""
        return self._whole.search(text, place, place + most + self._max_begun + 1)

    def match(self, text: str, place: int) -> re.Match[str] | None:
        """Return the marker at `place`."""
        return self._whole.match(text, place)

    def find_begun(self, text: str, place: int) -> int:
        """Return where the longest end of the text begins that may become a marker; its size if none does.

        The end is shorter than a marker, so the work does not depend on the text.
        """
        found = self._begun.search(text, max(place, len(text) - self._max_begun))
        return found.start() if found else len(text)


class Before(NamedTuple):
    """A text, and the marker behind it; "" if there was none yet."""

    text: str
    marker: str


class TextReader:
    """The text that was fed and is not taken yet.

    A parser takes all but the beginning of a marker, so a piece costs work for its own length alone.
    """

    def __init__(self) -> None:
        self.text = ""
        self.place = 0
        """Where in `text` the untaken rest begins."""
        self.has_ended = False
        """Whether no more text comes."""

    def feed(self, text: str) -> None:
        """Append a piece."""
        self.text = self.text[self.place :] + text
        self.place = 0

    @property
    def is_empty(self) -> bool:
        """Whether all is taken."""
        return self.place == len(self.text)

    @property
    def waits(self) -> bool:
        """Whether all is taken and more may come."""
        return self.is_empty and not self.has_ended

    def peek(self) -> str:
        """Return the next letter; "" if there is none."""
        return self.text[self.place : self.place + 1]

    def take(self, pattern: re.Pattern[str]) -> str:
        """Take what the pattern matches here, which may be nothing."""
        found = pattern.match(self.text, self.place)
        return self.take_to(found.end()) if found else ""

    def take_to(self, end: int) -> str:
        """Take the text before a place."""
        taken = self.text[self.place : end]
        self.place = end
        return taken

    def take_letter(self) -> str:
        """Take the next letter."""
        return self.take_to(self.place + 1)

    def take_marker(self, markers: Markers) -> str:
        """Take the marker that stands here; "" if none does."""
        found = markers.match(self.text, self.place)
        return self.take_to(found.end()) if found else ""

    def is_undecided(self, markers: Markers) -> bool:
        """Whether only more text can say if a marker stands here."""
        is_beginning = markers.find_begun(self.text, self.place) == self.place
        return is_beginning and not self.has_ended and markers.match(self.text, self.place) is None

    def take_before(self, markers: Markers) -> Before:
        """Take the text before the first marker, and the marker. Leave an end that may become one."""
        first = markers.find_first(self.text, self.place)
        if not first:
            return Before(self.take_to(len(self.text)), "")
        found = markers.find(self.text, first.start())
        if found:
            before = self.take_to(found.start())
            return Before(before, self.take_to(found.end()))
        end = len(self.text) if self.has_ended else markers.find_begun(self.text, self.place)
        return Before(self.take_to(end), "")

    def stands_at(self, markers: Markers) -> bool:
        """Whether a marker stands here."""
        return markers.match(self.text, self.place) is not None

    def take_within(self, markers: Markers, most: int) -> "Within":
        """Take the text before a marker that begins within `most` letters, and the marker."""
        found = markers.find_within(self.text, self.place, most)
        end = self.place + most
        if found and found.start() <= end:
            return Within(self.take_to(found.start()), self.take_to(found.end()), True)
        begun = len(self.text) if self.has_ended else markers.find_begun(self.text, self.place)
        is_over = self.has_ended or begun > end
        return Within(self.take_to(min(begun, end)), "", is_over)


class Within(NamedTuple):
    """A text, the marker behind it or "", and whether more text would change neither."""

    text: str
    marker: str
    is_over: bool


State = Callable[[], bool]
"""Reads on, and returns whether the next state can; else it needs more text."""


class StateParser:
    """A parser that is always in one of its states. A subclass has the states, and chooses the first."""

    def __init__(self, first: State) -> None:
        self._reader = TextReader()
        self._out = DeltaBuilder()
        self._state = first
        self._held: list[str] = []
        """Text that is content unless a call follows."""

    def feed(self, text: str) -> AnswerDelta:
        """Return the parts that are certain with the next piece of text."""
        self._reader.feed(text)
        while self._state():
            pass
        return self._out.take()

    def finish(self) -> AnswerDelta:
        """Return the parts that were held back."""
        self._reader.has_ended = True
        return self.feed("")

    def _go(self, state: State) -> bool:
        self._state = state
        return True

    def _release(self, state: State) -> bool:
        """Take the held text for content, and go to a state."""
        self._out.add_content("".join(self._held))
        self._held = []
        return self._go(state)

    def _skip_before(self, markers: Markers) -> str:
        """Take the text before a marker, and the marker. If none comes, the text is content at the end."""
        text, marker = self._reader.take_before(markers)
        self._held.append(text)
        skipped = "".join(self._held) if marker or self._reader.has_ended else ""
        if not marker and skipped.strip():
            self._out.add_content(skipped)
        if skipped or marker:
            self._held = []
        return marker

    def _hold(self, pattern: re.Pattern[str]) -> str:
        """Take what the pattern matches, which is content unless a call follows."""
        taken = self._reader.take(pattern)
        self._held.append(taken)
        return taken


def _any_of(texts: Iterable[str]) -> str:
    return "|".join(re.escape(text) for text in sorted(texts, key=len, reverse=True))
