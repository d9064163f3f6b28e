"""The lines of `status.scaling`, and the limits of its parts and figures. Pure.

A line replaces an object, because `kubectl describe` prints a dozen lines for each object of a list. Anybody
who may write a status may write other lines, so the readers skip a line of another form.
"""

import re
from collections.abc import Iterable
from typing import Any

NUM_CANDIDATES = 16
NUM_REJECTED = 32
NAME_LENGTH = 64
REASON_LENGTH = 256
WORDS_LENGTH = 1024
LINE_LENGTH = 512
# Limits that the operator and the readers of status compare figures with.
SPENT_SECONDS = 120.0
"""The burn beyond the allowed one, summed over seconds, that asks for one more replica.

If all requests miss an objective at P95, the sum reaches it after four ticks of 2 s.
"""
FUTILE_STEPS = 2
"""So many added replicas may leave as many requests late as before. Then the autoscaler adds no more."""
FLAPS_BORNE = 1
"""So many counts may fall too early. After more of them a lower count must have been enough for longer."""
MIN_LATENCY_SAMPLES = 3.0
"""A quantile q needs so many times 1/(1-q) requests; fewer say nothing about it."""
TRIED = "only what replicas tried before the first request is known"
"""The text of `learning` before the first request."""
Json = dict[str, Any]
UNKNOWN = "?"
_OBJECTIVE = re.compile(
    r"P(?P<percentile>\d{1,3}) (?P<metric>\w+) (?P<state>\w+) since (?P<since>\S+): (?P<measuredSeconds>\S+) "
    r"of (?P<targetSeconds>\S+) s, (?P<samples>\S+) requests, burn (?P<burnRate>\S+), spent "
    r"(?P<spentSeconds>\S+) s(?:; (?P<doubt>.*))?"
)


def render_objective(objective: Json, doubt: str | None) -> str:
    """Return an objective and its measurements as a line. `doubt` says why they are unknown, if they are."""
    measured, target, samples, burn, spent = (
        objective.get(name, UNKNOWN)
        for name in ("measuredSeconds", "targetSeconds", "samples", "burnRate", "spentSeconds")
    )
    head = f"P{objective['percentile']} {objective['metric']} {objective['state']} since {objective['since']}"
    figures = f"{measured} of {target} s, {samples} requests, burn {burn}, spent {spent} s"
    words = " ".join((doubt or "").split())
    return f"{head}: {figures}{f'; {words}' if words else ''}"[:LINE_LENGTH]


def read_objectives(lines: Iterable[str]) -> list[Json]:
    """Return the objectives in these lines, without their unknown figures."""
    return [_read_objective(found) for line in lines if (found := _OBJECTIVE.fullmatch(line))]


def _read_objective(found: re.Match[str]) -> Json:
    texts = {name: text for name, text in found.groupdict().items() if text not in (None, UNKNOWN)}
    whole = {name: int(texts[name]) for name in ("percentile", "samples") if texts.get(name, "").isdecimal()}
    return {**{name: text for name, text in texts.items() if name != "samples"}, **whole}
