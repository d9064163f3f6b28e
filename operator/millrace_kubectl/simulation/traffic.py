"""The requests to replay: a recorded trace, or requests drawn from a Prometheus' records of a service.

A Prometheus keeps no single requests, but rates and mean lengths, step by step. So arrivals within a step are
a Poisson process, and lengths are lognormal around the step's means.
"""

import math
import random
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from millrace_kubectl.errors import ServerError, UsageError
from millrace_kubectl.simulation.manifest import read_text
from millrace_kubectl.simulation.prometheus import Prometheus
from millrace_kubectl.wording import describe_length
from millrace_kubernetes.durations import parse_duration
from millrace_operator.autoscaler.signals.queries import LABEL_SIGNAL, Question, Scope, build_past
from millrace_operator.autoscaler.signals.scrapes import SCRAPES
from millrace_operator.autoscaler.simulate.load import CONVERSATION, Lengths, Request
from millrace_operator.autoscaler.simulate.traces import TraceError, cut, read_lines, scale

MINUTE = 60.0
SHORTEST_STEP = 60.0
MOST_STEPS = 10_000
"""Prometheus answers with 11,000 points at most."""
SIGNALS = ("arrivals", "received", "refused", "prompt_tokens", "generation_tokens")
PROMPT_SPREAD, GENERATION_SPREAD = CONVERSATION.prompt_deviation, CONVERSATION.generation_deviation
"""The spread of lengths' logarithms about a step's mean, as in a public trace of conversations."""
Series = dict[float, float]


@dataclass(frozen=True)
class Traffic:
    """Requests in order."""

    requests: Sequence[Request]
    seconds: float
    notes: tuple[str, ...] = ()
    """The differences from a record."""

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
        """Return the requests a second of the busiest minute, or of the whole time if that is shorter."""
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
    """Return a recorded trace, or a part of it. Raises UsageError."""
    try:
        recorded = list(read_lines(read_text(path).splitlines()))
        if not recorded:
            raise UsageError(f"{path} has no requests; write one on each line after the first")
        length = recorded[-1].at + _find_gap(recorded)
        begin, end = _read_span(span, length)
        requests = list(cut(scale(cut(recorded, begin, end), factor, seed), 0.0, end - begin))
    except TraceError as error:
        raise UsageError(f"{path}: {error}") from error
    if not requests:
        raise UsageError(f"--part {span} of {path} has no requests; write another part")
    notes = () if factor == 1 else (f"each request of the trace is there {factor} times, within 5 s",)
    return Traffic(requests, end - begin, notes)


def _find_gap(requests: Sequence[Request]) -> float:
    """Return the mean gap: the trace ends so long after its last request."""
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


class Past(NamedTuple):
    """The time to query."""

    now: float
    seconds: float
    scrape_seconds: float

    @property
    def step(self) -> float:
        """The length of a step, in which a rate needs some scrapes."""
        return max(SHORTEST_STEP, SCRAPES * self.scrape_seconds, math.ceil(self.seconds / MOST_STEPS))


class Step(NamedTuple):
    """The load of one step."""

    rate: float
    prompt_tokens: float
    generation_tokens: float


@dataclass(frozen=True)
class History:
    """The steps, from the first known one."""

    steps: list[Step]
    step_seconds: float
    num_filled: int
    """Unknown steps, which are copies of the one before."""


def fetch_history(prometheus: Prometheus, namespace: str, name: str, past: Past) -> History:
    """Return a service's load over some time. Raises PluginError."""
    step = past.step
    if past.seconds < step:
        raise UsageError(f"--since is shorter than a step of {describe_length(step)}; write a longer one")
    signals = build_past(step, Scope((namespace,), prometheus.matchers))
    question = Question({signal: signals[signal] for signal in SIGNALS})
    begin = past.now - past.seconds + step
    fields = {"query": question.text, "start": begin, "end": past.now, "step": step}
    series = _sort(prometheus.ask(fields), namespace, name)
    times = [begin + i * step for i in range(int((past.seconds - step) / step) + 1)]
    steps, num_filled = _list_steps(series, [round(at, 3) for at in times])
    if not any(each.rate for each in steps):
        raise ServerError(
            f"Prometheus at {prometheus.url} knows no requests of {namespace}/{name} in the last "
            f"{describe_length(past.seconds)}; look at --since, --namespace and the service's name"
        )
    return History(steps, step, num_filled)


def _sort(found: Any, namespace: str, name: str) -> dict[str, Series]:
    """Return each signal's values of one service by time."""
    series: dict[str, Series] = {}
    try:
        for item in found["data"]["result"]:
            labels = item["metric"]
            if (labels.get("namespace"), labels.get("service")) == (namespace, name):
                values = ((round(float(at), 3), float(text)) for at, text in item["values"])
                series[labels[LABEL_SIGNAL]] = {at: value for at, value in values if math.isfinite(value)}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ServerError(f"Prometheus answered in an unknown shape: {error!r}") from error
    return series


def _list_steps(series: Mapping[str, Series], times: list[float]) -> tuple[list[Step], int]:
    """Return the steps from the first known rate on, and the number of unknown ones.

    A step has lengths if requests finished in it. The steps before the first such one get its lengths.
    """
    prompt, generation = _first(series, "prompt_tokens"), _first(series, "generation_tokens")
    steps: list[Step] = []
    num_filled = 0
    for at in times:
        rate = _find_rate(series, at)
        if rate is None and not steps:
            continue
        num_filled += rate is None
        prompt = series.get("prompt_tokens", {}).get(at, prompt)
        generation = series.get("generation_tokens", {}).get(at, generation)
        steps.append(Step(steps[-1].rate if rate is None else rate, prompt, generation))
    return steps, num_filled


def _first(series: Mapping[str, Series], signal: str) -> float:
    return next(iter(series.get(signal, {}).values()), math.nan)


def _find_rate(series: Mapping[str, Series], at: float) -> float | None:
    """Return the larger one of the rates at gateway and replicas, like the autoscaler."""
    known = [series["arrivals"][at]] if at in series.get("arrivals", {}) else []
    if at in series.get("received", {}):
        known.append(series["received"][at] - series.get("refused", {}).get(at, 0.0))
    return max(0.0, *known) if known else None


def draw_traffic(history: History, kv_tokens: int, seed: int) -> Traffic:
    """Return requests with the history's rates and lengths. Raises ServerError without lengths."""
    if any(math.isnan(step.prompt_tokens + step.generation_tokens) for step in history.steps):
        raise ServerError("Prometheus knows no lengths of requests: none finished; write a longer --since")
    rng = random.Random(seed)  # noqa: S311  a simulation
    requests = [
        request
        for index, step in enumerate(history.steps)
        for request in _draw_step(step, index * history.step_seconds, history.step_seconds, kv_tokens, rng)
    ]
    if not requests:
        raise ServerError("so few requests were recorded that none was drawn; write a longer --since")
    length = describe_length(history.step_seconds)
    notes = [f"rates and mean lengths are recorded, each of {length}; bursts and lengths within are drawn"]
    if history.num_filled:
        notes.append(
            f"{history.num_filled} of {len(history.steps)} steps of {length} have no samples: "
            "each is a copy of the one before"
        )
    longest = _find_longest(kv_tokens)
    cut = sum(longest in (each.prompt_tokens, each.generation_tokens) for each in requests)
    if cut:
        notes.append(
            f"{100 * cut / len(requests):.2g} % of the requests were drawn longer than {longest} tokens, "
            "half of the KV cache, and are cut"
        )
    return Traffic(requests, len(history.steps) * history.step_seconds, tuple(notes))


def _draw_step(
    step: Step, begin: float, seconds: float, kv_tokens: int, rng: random.Random
) -> Iterator[Request]:
    if step.rate <= 0:
        return
    lengths = Lengths(
        _find_mean(step.prompt_tokens, PROMPT_SPREAD),
        PROMPT_SPREAD,
        _find_mean(step.generation_tokens, GENERATION_SPREAD),
        GENERATION_SPREAD,
        longest=_find_longest(kv_tokens),
    )
    at = begin
    while (at := at + rng.expovariate(step.rate)) < begin + seconds:
        yield Request(at, *lengths.draw(rng))


def _find_longest(kv_tokens: int) -> int:
    """Return the largest length of a prompt or an answer, so that any two fit."""
    return max(1, kv_tokens // 2)


def _find_mean(tokens: float, spread: float) -> float:
    """Return the mean of the logarithm of lognormal lengths with this mean."""
    return math.log(max(tokens, 1.0)) - spread * spread / 2
