"""One choice's text, split into reasoning, content and tool calls as it comes; the same for every dialect."""

import secrets
import string
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from millrace_runtime.api.answer.choice import Delta
from millrace_runtime.api.request.answer_form import AnswerForm, Reasoning
from millrace_runtime.api.request.generation_request import AnswerWish
from millrace_runtime.chat.parsers.answer import (
    AnswerDelta,
    AnswerParser,
    CallDelta,
    Part,
    TextDelta,
    join_deltas,
)
from millrace_runtime.chat.parsers.registry import open_parser

_ID_LETTERS = string.ascii_letters + string.digits


@dataclass
class Call:
    """A tool call so far."""

    call_id: str
    name: str
    arguments: list[str] = field(default_factory=list)
    """Pieces of JSON."""

    @property
    def json(self) -> str:
        """The arguments as one JSON text."""
        return "".join(self.arguments)


@dataclass
class Text:
    """A piece of reasoning or content so far."""

    kind: Literal["reasoning", "content"]
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The text."""
        return "".join(self.pieces)


class Message:
    """Splits a choice's deltas, and collects the parts."""

    def __init__(
        self,
        parser: AnswerParser,
        *,
        shows_reasoning: bool = True,
        is_one_call: bool = False,
        is_short_id: bool = False,
    ) -> None:
        """`is_one_call` drops all calls but the first. `is_short_id` is for Mistral's templates."""
        self._parser = parser
        self._shows_reasoning = shows_reasoning
        self._is_one_call = is_one_call
        self._is_short_id = is_short_id
        self.parts: list[Text | Call] = []
        """In the order of the answer."""
        self.calls: list[Call] = []
        self.num_reasoning_tokens = 0

    @property
    def reasoning(self) -> str:
        """The reasoning so far."""
        return self._join("reasoning")

    @property
    def content(self) -> str:
        """The content so far."""
        return self._join("content")

    def accept(self, delta: Delta) -> AnswerDelta:
        """Return what the choice's next delta is, and add it to the parts."""
        split = self._parser.feed(delta.text)
        if delta.finish_reason is not None:
            split = join_deltas((split, self._parser.finish()))
        if split.reasoning:
            self.num_reasoning_tokens = delta.num_tokens
        split = AnswerDelta(tuple(filter(self._is_wanted, split.parts)))
        for part in split.parts:
            self._collect(part)
        return split

    def _is_wanted(self, part: Part) -> bool:
        if isinstance(part, CallDelta):
            return part.index == 0 or not self._is_one_call
        return part.kind == "content" or self._shows_reasoning

    def _collect(self, part: Part) -> None:
        last = self.parts[-1] if self.parts else None
        if isinstance(part, TextDelta):
            if not isinstance(last, Text) or last.kind != part.kind:
                last = Text(part.kind)
                self.parts.append(last)
            last.pieces.append(part.text)
            return
        if part.name is not None:
            call_id = part.call_id or _new_id(is_short=self._is_short_id)
            self.calls.append(Call(call_id, part.name))
            self.parts.append(self.calls[-1])
        self.calls[part.index].arguments.append(part.arguments)

    def call_of(self, delta: CallDelta) -> Call:
        """Return the call that a delta is of."""
        return self.calls[delta.index]

    def _join(self, kind: str) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, Text) and part.kind == kind)


OpenMessage = Callable[[], Message]
"""Opens the Message of one choice."""


def _new_id(*, is_short: bool) -> str:
    """Return an id for a call. Mistral's templates refuse any but nine letters."""
    if is_short:
        return "".join(secrets.choice(_ID_LETTERS) for _ in range(9))
    return "call_" + secrets.token_hex(12)


def open_messages(wish: AnswerWish, form: AnswerForm) -> OpenMessage | None:
    """Return a function that opens a choice's Message; None if all of the text is content."""
    if form.is_plain:
        return None

    def open_message() -> Message:
        parser = open_parser(
            *form.formats, begins_in_reasoning=form.reasoning is Reasoning.OPEN, tools=wish.tools
        )
        return Message(
            parser,
            shows_reasoning=wish.shows_reasoning,
            is_one_call=wish.is_one_call,
            is_short_id=form.tool_format == "mistral",
        )

    return open_message
