"""One choice's text, split into reasoning, content and tool calls as it comes; the same for every dialect."""

import secrets
import string
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from millrace_runtime.api.answer.choice import Delta
from millrace_runtime.chat.parsers.answer import AnswerDelta, AnswerParser, CallDelta

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


class Message:
    """Splits a choice's deltas, and collects the parts."""

    def __init__(
        self,
        parser: AnswerParser | None,
        *,
        shows_reasoning: bool = True,
        is_one_call: bool = False,
        is_short_id: bool = False,
    ) -> None:
        """Without a parser all text is content.

        `is_one_call` drops all calls but the first. `is_short_id` is for Mistral's templates.
        """
        self._parser = parser
        self._shows_reasoning = shows_reasoning
        self._is_one_call = is_one_call
        self._is_short_id = is_short_id
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self.calls: list[Call] = []
        self.num_reasoning_tokens = 0

    @property
    def reasoning(self) -> str:
        """The reasoning so far."""
        return "".join(self._reasoning)

    @property
    def content(self) -> str:
        """The content so far."""
        return "".join(self._content)

    def accept(self, delta: Delta) -> AnswerDelta:
        """Return what the choice's next delta is, and add it to the parts."""
        if self._parser is None:
            self._content.append(delta.text)
            return AnswerDelta("", delta.text, ())
        split = self._parser.feed(delta.text)
        if delta.finish_reason is not None:
            split = _join(split, self._parser.finish())
        if split.reasoning:
            self.num_reasoning_tokens = delta.num_tokens
        calls = split.calls
        if self._is_one_call:
            calls = tuple(call for call in calls if call.index == 0)
        split = AnswerDelta(split.reasoning if self._shows_reasoning else "", split.content, calls)
        self._collect(split)
        return split

    def _collect(self, split: AnswerDelta) -> None:
        self._reasoning.append(split.reasoning)
        self._content.append(split.content)
        for call in split.calls:
            if call.name is not None:
                call_id = call.call_id or _new_id(is_short=self._is_short_id)
                self.calls.append(Call(call_id, call.name))
            self.calls[call.index].arguments.append(call.arguments)

    def call_of(self, delta: CallDelta) -> Call:
        """Return the call that a delta is of."""
        return self.calls[delta.index]


def order_parts(split: AnswerDelta, open_call: int | None) -> Iterator[CallDelta | tuple[str, str]]:
    """Yield what a delta brings in its order: the rest of the open call, reasoning, content, further calls.

    A part that is text is its kind, "reasoning" or "content", and the text.
    """
    yield from (call for call in split.calls if call.index == open_call)
    texts = (("reasoning", split.reasoning), ("content", split.content))
    yield from ((kind, text) for kind, text in texts if text)
    yield from (call for call in split.calls if call.index != open_call)


OpenMessage = Callable[[], Message]


def _join(first: AnswerDelta, second: AnswerDelta) -> AnswerDelta:
    return AnswerDelta(
        first.reasoning + second.reasoning, first.content + second.content, first.calls + second.calls
    )


def _new_id(*, is_short: bool) -> str:
    """Return an id for a call. Mistral's templates refuse any but nine letters."""
    if is_short:
        return "".join(secrets.choice(_ID_LETTERS) for _ in range(9))
    return "call_" + secrets.token_hex(12)
