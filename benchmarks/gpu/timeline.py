"""Reads a profiler's trace: which step each operation of the device is of, gaps, and what takes the time.

Times are in microseconds, as in the trace. Pure.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

Event = Mapping[str, Any]
"""An event of Chrome's trace format."""
STEP = "step "
"""The name of the range in which a step is submitted begins so, and its number follows."""
ON_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
LAUNCHES = frozenset({"cuda_runtime", "cuda_driver"})
NAME_LENGTH = 60


class Operation(NamedTuple):
    """What the device did, and for which step."""

    step: int
    name: str
    begin: float
    end: float


class Gaps(NamedTuple):
    """How the device's time was spent from the first step's begin to the last one's."""

    period: float
    """Of a step, on average."""
    between: float
    """Share of the time from a step's last operation to the next one's first."""
    within: float
    """Share of the time in which a step had begun, was not over, and nothing ran."""


def read_operations(events: Sequence[Event], on_device: frozenset[str] = ON_DEVICE) -> list[Operation]:
    """Return the device's operations in their order, each with its step.

    A step's operations are launched after its range begins and before that of the next. One whose launch the
    trace does not have goes to the step of the one before it.
    """
    begins = sorted(event["ts"] for event in events if _is_step(event))
    launches = {
        event["args"]["correlation"]: event["ts"]
        for event in events
        if event.get("cat") in LAUNCHES and "correlation" in event.get("args", {})
    }
    found: list[Operation] = []
    for event in sorted((one for one in events if one.get("cat") in on_device), key=lambda one: one["ts"]):
        launched = launches.get(event.get("args", {}).get("correlation"))
        if launched is None and launches:
            step = found[-1].step if found else -1
        else:
            step = bisect_right(begins, event["ts"] if launched is None else launched) - 1
        found.append(Operation(step, event["name"], event["ts"], event["ts"] + event["dur"]))
    return [one for one in found if one.step >= 0]


def _is_step(event: Event) -> bool:
    return event.get("cat") == "user_annotation" and event["name"].startswith(STEP)


def measure_gaps(operations: Iterable[Operation]) -> Gaps:
    """Return the gaps. There must be two steps at least."""
    by_step: dict[int, list[Operation]] = defaultdict(list)
    for one in operations:
        by_step[one.step].append(one)
    steps = [by_step[number] for number in sorted(by_step)]
    begins, ends = [min(o.begin for o in one) for one in steps], [max(o.end for o in one) for one in steps]
    total = begins[-1] - begins[0]
    between = sum(max(0.0, begin - end) for begin, end in zip(begins[1:], ends, strict=False))
    within = sum(_idle(one) for one in steps[:-1])
    return Gaps(total / (len(steps) - 1), between / total, within / total)


def _idle(operations: Sequence[Operation]) -> float:
    """Return how long nothing ran between the first begin and the last end."""
    idle, busy_until = 0.0, operations[0].begin
    for one in operations:
        idle += max(0.0, one.begin - busy_until)
        busy_until = max(busy_until, one.end)
    return idle


class Share(NamedTuple):
    """What all runs of one kernel took."""

    name: str
    num_runs: int
    microseconds: float


def rank_kernels(operations: Iterable[Operation], count: int) -> list[Share]:
    """Return the kernels that took most of the time, the longest first."""
    times: dict[str, list[float]] = defaultdict(list)
    for one in operations:
        times[one.name[:NAME_LENGTH]].append(one.end - one.begin)
    shares = [Share(name, len(all_times), sum(all_times)) for name, all_times in times.items()]
    return sorted(shares, key=lambda share: -share.microseconds)[:count]


def slim(events: Sequence[Event], on_device: frozenset[str] = ON_DEVICE) -> list[dict[str, Any]]:
    """Return the events that show steps, launches and the device's work, with what a viewer needs of them."""
    kept = [one for one in events if one.get("cat") in on_device | LAUNCHES or _is_step(one)]
    first = min((one["ts"] for one in kept), default=0.0)
    return [
        {
            "ph": "X",
            "name": one["name"][:NAME_LENGTH],
            "cat": one["cat"],
            "ts": round(one["ts"] - first, 2),
            "dur": round(one["dur"], 2),
            "pid": one["pid"],
            "tid": one["tid"],
        }
        for one in kept
    ]
