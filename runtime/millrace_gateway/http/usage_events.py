"""Takes the replicas' usage events out of a stream of server-sent events. Pure."""

from collections.abc import Callable

from millrace_runtime.contract import USAGE_EVENT

_END = b"\n\n"
_MAX_EVENT_BYTES = 128


class UsageEvents:
    """Removes each event that begins with USAGE_EVENT, and reports its numbers.

    Such an event begins a stream or follows an empty line. A text that a model writes can't look like it: in
    the JSON of an event a line's end is escaped.
    """

    __slots__ = ("_ends_in_newline", "_is_at_start", "_on_usage", "_partial")

    def __init__(self, on_usage: Callable[[bytes], None] = lambda _: None) -> None:
        """`on_usage` gets the numbers of each event, as the replica wrote them."""
        self._on_usage = on_usage
        self._is_at_start = True
        """Whether the next byte begins an event."""
        self._ends_in_newline = False
        self._partial = b""
        """The start of what may be such an event."""

    def convert(self, piece: bytes) -> bytes:
        """Return the piece without usage events. An unfinished one waits for its rest."""
        if (
            self._is_at_start and not self._partial and piece.endswith(_END) and USAGE_EVENT not in piece
        ):  # whole events, none of usage: nearly every piece, and each token is one
            self._ends_in_newline = True
            return piece
        if self._partial:
            piece, self._partial = self._partial + piece, b""
        kept, start, size = [], 0, len(piece)
        if not self._is_at_start and self._ends_in_newline and piece.startswith(b"\n"):
            kept, start, self._is_at_start = [b"\n"], 1, True
        while start < size:
            if self._is_at_start and self._may_begin(piece, start):
                end = piece.find(_END, start)
                if end < 0 and size - start <= _MAX_EVENT_BYTES:
                    self._partial = piece[start:]
                    break
                if end >= 0:
                    self._on_usage(piece[start + len(USAGE_EVENT) : end])
                    start = end + len(_END)
                    continue
            end = piece.find(_END, start)
            self._is_at_start = end >= 0
            after = end + len(_END) if end >= 0 else size
            kept.append(piece[start:after])
            start = after
        if kept:
            self._ends_in_newline = kept[-1].endswith(b"\n")
        return kept[0] if len(kept) == 1 else b"".join(kept)

    @staticmethod
    def _may_begin(piece: bytes, start: int) -> bool:
        """Whether a usage event begins there, as far as its bytes have come."""
        return piece.startswith(USAGE_EVENT, start) or (
            len(piece) - start < len(USAGE_EVENT) and USAGE_EVENT.startswith(piece[start:])
        )
