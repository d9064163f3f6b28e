"""gpt-oss's harmony: messages of channels.

`<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…`. A call is a
message to a function: `<|channel|>commentary to=functions.name <|constrain|>json<|message|>{…}<|call|>`.
"""

import re
from collections.abc import Callable

from millrace_runtime.chat.parsers.reader import Markers, StateParser

_BEGINNING = Markers("<|channel|>", "<|start|>", " to=")
"""How a message's head goes on behind the prompt's `<|start|>assistant`."""
_NEXT = Markers("<|channel|>", "<|start|>")
_HEAD_END = Markers("<|message|>")
_TEXT_END = Markers("<|end|>", "<|call|>", "<|start|>", "<|channel|>")
_HEAD = re.compile(
    r"(?:<\|start\|>)?(?:assistant)?(?: ?to=(?P<early>[^\s<]+))?\s*"
    r"(?:<\|channel\|>(?P<channel>\w+)(?: to=(?P<late>[^\s<]+))?\s*(?:<\|constrain\|>)?\w*\s*)?"
)
_MAX_HEAD = 256


class HarmonyParser(StateParser):
    """Takes the channel `analysis` for reasoning, messages to a function for calls, and the rest for content.

    Text outside messages is content too, and so is a head that is none.
    """

    def __init__(self, *, splits_reasoning: bool) -> None:
        """Without `splits_reasoning`, reasoning is content."""
        super().__init__(self._begin)
        self._splits_reasoning = splits_reasoning
        self._head = ""
        self._add: Callable[[str], None] = self._out.add_content
        """Adds to the part that the message belongs to."""
        self._has_written: set[Callable[[str], None]] = set()
        self._is_at_start = False
        """Whether the message has no text yet."""

    def _begin(self) -> bool:
        if self._reader.is_undecided(_BEGINNING):
            return False
        return self._go(self._read_head if self._reader.stands_at(_BEGINNING) else self._read_text)

    def _read_head(self) -> bool:
        text, marker, is_over = self._reader.take_within(_HEAD_END, _MAX_HEAD - len(self._head))
        self._head += text
        if not is_over:
            return False
        head, self._head = self._head, ""
        found = _HEAD.fullmatch(head) if marker else None
        if found is None:
            self._out.add_content(head + marker)
            self._add = self._out.add_content
        else:
            self._begin_message(found["channel"], found["late"] or found["early"])
        return self._go(self._read_text)

    def _begin_message(self, channel: str | None, recipient: str | None) -> None:
        self._is_at_start = True
        if recipient is not None:
            self._out.begin_call(recipient.removeprefix("functions."))
            self._add = self._out.add_arguments
        elif channel == "analysis" and self._splits_reasoning:
            self._add = self._out.add_reasoning
        else:
            self._add = self._out.add_content

    def _read_text(self) -> bool:
        text, marker = self._reader.take_before(_TEXT_END)
        if text:
            self._write(text)
        if marker in {"<|start|>", "<|channel|>"}:
            self._head = marker
            return self._go(self._read_head)
        return bool(marker) and self._go(self._expect_next)

    def _write(self, text: str) -> None:
        """Add the message's text. Messages of one part are apart by a line break."""
        is_second = self._is_at_start and self._add in self._has_written
        if is_second and self._add != self._out.add_arguments:
            self._add("\n")
        self._is_at_start = False
        self._has_written.add(self._add)
        self._add(text)

    def _expect_next(self) -> bool:
        if self._reader.is_undecided(_NEXT) or self._reader.waits:
            return False
        if not self._reader.stands_at(_NEXT):
            self._add = self._out.add_content
        return self._go(self._read_text)
