"""What the dialects share whose answers are lists of parts: one choice, and no log-probabilities."""

from abc import abstractmethod
from collections.abc import Iterator

from millrace_runtime.api.answer.choice import Delta
from millrace_runtime.api.answer.message import Message
from millrace_runtime.api.answer.writer import AnswerSpec, Writer
from millrace_runtime.chat.parsers.answer import Part, PlainParser


class PartsWriter(Writer):
    """Writes reasoning, content and calls in the order of the answer."""

    def __init__(self, spec: AnswerSpec) -> None:
        super().__init__(spec)
        self._message = Message(PlainParser()) if spec.open_message is None else spec.open_message()
        self._finish: str | None = None
        self._stop_string: str | None = None

    def encode_delta(self, delta: Delta) -> bytes | None:
        """Return the events of a delta; None while it may be content or something else."""
        return b"".join(self._accept(delta)) or None

    def add_delta(self, delta: Delta) -> int:
        """Collect a delta for a whole answer. Return how many bytes it takes."""
        for _ in self._accept(delta):
            pass
        return len(delta.text)

    def _accept(self, delta: Delta) -> Iterator[bytes]:
        for part in self._message.accept(delta).parts:
            yield self._encode_part(part)
        # Only now: a part may end the one before it, which the answer's end did not cut.
        self._finish = delta.finish_reason
        self._stop_string = delta.stop_string

    @abstractmethod
    def _encode_part(self, part: Part) -> bytes:
        """Return the events of a part, which may begin another one."""
