"""What clients saw of streams, and the figures that it gives. Pure."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from testing.traffic import percentile


@dataclass(slots=True)
class Stream:
    """One request's answer. Times are of the system's monotonic clock, which all processes share."""

    sent: float = float("nan")
    times: list[float] = field(default_factory=list)
    """When each event with text came."""
    num_tokens: int = 0
    """As the server counts them at the end."""
    is_cancelled: bool = False
    error: str | None = None

    def note(self, event: Mapping[str, Any], now: float) -> None:
        """Note an event of the stream."""
        if error := event.get("error"):
            self.error = str(error)
        if event.get("choices"):
            self.times.append(now)
        if usage := event.get("usage"):
            self.num_tokens = usage["completion_tokens"]

    @property
    def first_token_seconds(self) -> float:
        """From sending to the first token. NaN without a token."""
        return self.times[0] - self.sent if self.times else float("nan")

    @property
    def mean_gap(self) -> float:
        """Seconds from a token to the next, on average. NaN without two tokens."""
        count = len(self.times) - 1
        return (self.times[-1] - self.times[0]) / count if count > 0 else float("nan")


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast streams were together."""

    tokens_per_second: float
    """From the first request to the last token."""
    mean_gap: float
    """Seconds between two tokens of a stream, on its average: the median of all streams."""
    gap_p50: float
    """Of all pairs of tokens. Tokens that a client reads at once have no time between them."""
    gap_p99: float
    longest_gap: float
    first_token_p50: float


def measure_pace(streams: Sequence[Stream]) -> Pace:
    """Return the pace of streams. All have at least one token."""
    gaps = [later - earlier for stream in streams for earlier, later in pairwise(stream.times)]
    began = min(stream.sent for stream in streams)
    ended = max(stream.times[-1] for stream in streams)
    return Pace(
        tokens_per_second=sum(stream.num_tokens for stream in streams) / (ended - began),
        mean_gap=statistics.median(stream.mean_gap for stream in streams),
        gap_p50=percentile(gaps, 50),
        gap_p99=percentile(gaps, 99),
        longest_gap=max(gaps, default=float("nan")),
        first_token_p50=statistics.median(stream.first_token_seconds for stream in streams),
    )


def find_fault(streams: Iterable[Stream], num_tokens: int) -> str | None:
    """Return why not every stream has so many tokens, or None."""
    for stream in streams:
        if stream.error is not None:
            return stream.error
        if stream.num_tokens != num_tokens or not stream.times:
            return f"a stream has {stream.num_tokens} tokens instead of {num_tokens}"
    return None
