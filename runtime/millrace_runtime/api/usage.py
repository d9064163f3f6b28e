"""The tokens of a request, and how a replica reports them to the gateway: beside the answer, not in it."""

from collections.abc import Callable
from typing import NamedTuple

from starlette.types import Scope

from millrace_runtime.contract import (
    HEADER_EARLY_REPORT,
    HEADER_REPORT,
    REPORT_USAGE,
    USAGE_EVENT,
    USAGE_SECONDS,
)

_REPORT = (HEADER_REPORT.lower().encode(), REPORT_USAGE.encode())
_EARLY_REPORT = (HEADER_EARLY_REPORT.lower().encode(), REPORT_USAGE.encode())


class Usage(NamedTuple):
    """Tokens of a request: each prompt once, every choice's completion."""

    num_prompt_tokens: int
    num_completion_tokens: int
    num_cached_tokens: int = 0
    """Of the prompts: those that the prefix cache had for the choice of each prompt that began first."""
    num_reasoning_tokens: int | None = None
    """Of the completion; None if the server splits off no reasoning."""


NO_USAGE = Usage(0, 0)


class UsageReport:
    """Says when an answer reports its usage so far, and how: a stream by a comment of server-sent events."""

    def __init__(self, *, is_early: bool = False) -> None:
        self._due_at = 0.0
        self.is_early = is_early
        """Whether the request asks for reports before the answer begins."""
        self.read_usage: Callable[[], Usage] = lambda: NO_USAGE
        """Reads the usage so far. It is none until a generation is planned."""

    def is_due(self, now: float) -> bool:
        """Whether the last report is USAGE_SECONDS old, or there was none."""
        return now >= self._due_at

    def poll(self, now: float) -> bytes | None:
        """Return the report if it is due: with the first token, and then once in USAGE_SECONDS."""
        if not self.is_due(now) or not self.read_usage().num_completion_tokens:
            return None
        self._due_at = now + USAGE_SECONDS
        return self.encode_event()

    def encode_event(self) -> bytes:
        """Return the report as an event of a stream."""
        return USAGE_EVENT + self.encode() + b"\n\n"

    def encode(self) -> bytes:
        """Return the report as the value of a header."""
        usage = self.read_usage()
        return b"%d %d %d" % (usage.num_prompt_tokens, usage.num_cached_tokens, usage.num_completion_tokens)


def open_report(scope: Scope) -> UsageReport | None:
    """Return the report that a request asks for; None if it asks for none."""
    headers = scope["headers"]
    return UsageReport(is_early=_EARLY_REPORT in headers) if _REPORT in headers else None
