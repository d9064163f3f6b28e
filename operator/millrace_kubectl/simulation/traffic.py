"""The requests that are replayed, and what to say of them. A recorded trace, or a part of it, scaled."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from millrace_kubectl.errors import UsageError
from millrace_kubectl.moments import describe_length
from millrace_kubectl.simulation.documents import read_text
from millrace_kubernetes.durations import parse_duration
from millrace_operator.autoscaler.simulate.load import Request
from millrace_operator.autoscaler.simulate.traces import TraceError, part, read_lines, scale

MINUTE = 60.0


@dataclass(frozen=True)
class Traffic:
    """Requests in order, of so many seconds."""

    requests: Sequence[Request]
    seconds: float
    notes: tuple[str, ...] = ()
    """What of it was not recorded."""

    def describe(self) -> str:
        """Return its figures in one line."""
        count = len(self.requests)
        prompt = sum(request.prompt_tokens for request in self.requests) / count
        answer = sum(request.generation_tokens for request in self.requests) / count
        peak = self._find_peak()
        return (
            f"{count} requests in {describe_length(self.seconds)}: {count / self.seconds:.3g} a second, "
            f"{peak:.3g} in the busiest minute; prompts of {prompt:.0f} and answers of {answer:.0f} tokens"
        )

    def _find_peak(self) -> float:
        """Return the requests a second of the busiest minute, wherever it begins, or of a shorter whole."""
        width = min(MINUTE, self.seconds)
        times = [request.at for request in self.requests]
        most = max(bisect_left(times, at + width) - index for index, at in enumerate(times))
        return most / width

    def count_by(self, width: float) -> list[int]:
        """Return the requests of each `width` seconds."""
        counts = [0] * (int(self.seconds / width) + 1)
        for request in self.requests:
            counts[int(request.at / width)] += 1
        return counts

    def check(self, kv_tokens: int) -> None:
        """Refuse requests that no replica could take. Raises UsageError."""
        sizes = [request.prompt_tokens + request.generation_tokens for request in self.requests]
        if longer := [size for size in sizes if size > kv_tokens]:
            raise UsageError(
                f"{len(longer)} of {len(sizes)} requests are longer than a replica's KV cache of {kv_tokens} "
                f"tokens; write kv_tokens of {max(longer)} or more, or take them out of the trace"
            )


def read_trace(path: Path, span: str | None, factor: int, seed: int) -> Traffic:
    """Return a recorded trace, or the part from one time to another. Raises UsageError."""
    try:
        recorded = list(read_lines(read_text(path).splitlines()))
        if not recorded:
            raise UsageError(f"{path} has no requests; write one on each line after the first")
        length = recorded[-1].at + _find_gap(recorded)
        begin, end = _read_span(span, length)
        requests = list(part(scale(part(recorded, begin, end), factor, seed), 0.0, end - begin))
    except TraceError as error:
        raise UsageError(f"{path}: {error}") from error
    if not requests:
        raise UsageError(f"--part {span} of {path} has no requests; write another part")
    notes = () if factor == 1 else (f"each request of the trace is there {factor} times, within 5 s",)
    return Traffic(requests, end - begin, notes)


def _find_gap(requests: Sequence[Request]) -> float:
    """Return the mean gap: so long after its last request a trace ends."""
    return max(requests[-1].at / len(requests), 1.0)


def _read_span(text: str | None, length: float) -> tuple[float, float]:
    if text is None:
        return 0.0, length
    first, dash, last = text.partition("-")
    try:
        begin, end = parse_duration(first), parse_duration(last)
    except ValueError as error:
        raise UsageError(f"--part {text}: write two times, such as 0s-30m") from error
    if not dash or begin >= min(end, length):
        raise UsageError(f"--part {text}: write a begin before its end and within {describe_length(length)}")
    return begin, min(end, length)
