"""Takes the usage that a replica reports before a whole answer, in heads of the status 102. Pure."""

from collections.abc import Callable

from millrace_gateway.http.head import Headers, find_header
from millrace_runtime.contract import HEADER_USAGE

_USAGE = HEADER_USAGE.lower().encode()
_SHORT_BYTES = 256
"""A read of so many bytes has a few reports."""


class EarlyReports:
    """The reports of one connection. `on_usage` belongs to the request that it carries."""

    __slots__ = ("_last", "on_usage")

    def __init__(self) -> None:
        self.on_usage: Callable[[bytes], None] | None = None
        """None: nobody has asked for reports."""
        self._last: bytes | None = None

    def note_head(self, headers: Headers) -> None:
        """Note what a head that only informs says: of several in one read the last report counts."""
        report = find_header(headers, _USAGE)
        if report is not None:
            self._last = report

    def pass_on(self, num_bytes: int) -> bool:
        """Pass on what a read has reported. Return whether it had a report and little else."""
        last, self._last = self._last, None
        if last is None or self.on_usage is None:
            return False
        self.on_usage(last)
        return num_bytes <= _SHORT_BYTES
