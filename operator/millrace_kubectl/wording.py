"""All texts that the plugin prints, each in one place, and how it writes figures, times and tables. Pure."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime

METRICS = {
    "TimeToFirstToken": "TTFT",
    "TimePerOutputToken": "TPOT",
    "EndToEndLatency": "E2E",
    "QueueTime": "QUEUE",
}

BINDINGS = {
    "forecast": "",
    "queue": "{waiting} wait in the queue",
    "inFlight": "{running} run, more than such a load explains",
    "kvCache": "the KV caches are nearly full",
    "feedback": "requests are late or queue up, so more are tried",
    "tooFew": "fewer were too few for such a load in the last hour",
    "idle": "nothing arrives",
    "scaleToZeroAfter": "no request has come for long enough",
    "activation": "a request came, and there was no replica",
    "learning": "",
    "current": "nothing asks for a change",
    "maxReplicas": "{wanted} wanted, and maxReplicas is {most}",
    "capacity": "{wanted} wanted, and no node has room for so many",
    "minReplicas": "{wanted} would do, and minReplicas is {least}",
    "scaleUpRate": "{wanted} wanted, at most double or +4 a step",
    "scaleDownRate": "{wanted} would do; it goes down by one or a tenth a step",
    "scaleDownWindow": "{wanted} would do; it waits until the whole scale-down window allows it",
    "scaleDownInterval": "{wanted} would do; it waits until the last step down has settled",
    "deadBand": "{wanted} would do, but fewer leave too little room for a fifth more",
    "signals": "{wanted} would do; no lower while signals are missing",
    "objectives": "{wanted} would do; no lower while an objective is missed, or likely to be",
    "rollout": "{wanted} would do; no lower while replicas of two revisions serve",
    "spec.scaling": "no decision yet since the start or a change of the bounds",
}
"""Of status.scaling.binding, after the load. An unknown one is told by status.scaling.message."""

LIMITS = {"saturation": "saturated beyond", "kvCache": "KV-bound", "slots": "bound by its slots"}
"""Of a replica, beside its objectives."""

REMEDIES = {
    "Conflict": "see whose that object is, and rename it or this service",
    "Contested": "delete that autoscaler, or let it scale the InferenceService in mode External",
    "ChildRefused": "do what the API server says",
    "PodsRefused": "change the policy",
    "Quota": "raise the quota",
    "PodFailed": "do what the node says",
    "ImageUnavailable": "make the image pullable from the nodes",
    "ContainerRefused": "do what the node says",
    "SecretMissing": "create the Secret, or correct its name in the spec",
    "DoesNotFit": "write the setting that would fit, or ask for a larger device",
    "CacheUnusable": "do what it says of the claim",
    "ClaimMissing": "create the claim, or correct its name in spec.model.uri",
    "FetchFailed": "do what the source says, or correct spec.model",
    "ModelInvalid": "correct spec.model",
    "DeviceUnusable": "check the node's driver, or remove nvidia.com/gpu from spec.resources.limits",
    "SettingsInvalid": "correct the setting it names",
    "OutOfMemory": "raise spec.resources.limits.memory",
    "Crashing": "read the pod's log",
    "Killed": "read the pod's Events",
    "SidecarFailed": "read that container's log, and ask who adds it to the pods",
    "ProbeFailed": "read the pod's log and its Events",
    "NotReady": "see that the pod's node is Ready, and read the pod's Events",
    "RolledBack": "correct what it names and edit the spec, or undo the last edit",
    "Aborted": "edit the spec, or undo the last edit",
    "DeadlineExceeded": "read the pod's log, or wait",
    "Late": "read the pod's log, or raise spec.rollout.progressDeadline",
}
"""Of the condition Degraded, by its reason; where that says too little, by a name of its own."""

DIGITS, MOST_DIGITS = 3, 9
"""Of a latency. What is equal with the most is equal."""

NO_OPERATOR = "see that an operator leads: kubectl get lease -A"
NOT_SIGNALLED = "see that Prometheus answers and scrapes its pods"
NAME_APART = "let clients write {full}, or have the platform pin the name: the chart's gateway.shortNames"
NOT_REACHED = "raise its target, or give each replica more CPU or a GPU"
NOT_JUDGED = "its target is between two bounds of what is measured"
CHOOSE_BOUND = "choose a bound as the target of {name}: docs/how-to/objectives.md"
NOTHING = "nothing"
OBEY = "do what it says; a newer kubectl millrace may say more"
"""Of a reason that only a newer operator knows."""
WAIT = "wait: nothing fails"
UNMEASURED = "no replica has been Ready for long enough to be measured"
UNSEEN = f"wait a moment; if it stays so, {NO_OPERATOR}"
ENOUGH_BY_MODEL = "the model says that this is enough"
FUTILE = "more replicas left as many requests late, so no more are added"
MORE_IS_FUTILE = "see what else is slow: its nodes, or what its clients send"
WAIT_FOR_FEEDBACK = "wait: a replica is added if this goes on"
ENOUGH_FOR_LOAD = "wait: the load asks for no more replicas than there are"
WAIT_FOR_LOAD = "wait for some seconds of load"
WAIT_FOR_REPLICAS = "wait for the replicas that are not ready"
EXACT_BELOW = 600.0
"""A length is told to the second below ten minutes: with a count beside it, it is reckoned with."""


def name_objective(metric: str, percentile: int) -> str:
    """Return an objective's short name: TTFT p95."""
    return f"{METRICS.get(metric, metric)} p{percentile}"


def strip_unprintable(text: str) -> str:
    """Return the text without what steers a terminal. Its lines stay.

    A condition may have the last line of a pod's log, and a prompt may have chosen that.
    """
    return "".join(char for char in text if char.isprintable() or char == "\n")


def shorten(text: str, most: int = 100) -> str:
    """Return the text's first line, cut where it is long; -v shows all of it."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def show_whole_share(share: float) -> str:
    """Return a share of requests in percent. It is rounded down: 99.999 % is not all."""
    return f"{math.floor(10_000 * share + 1e-6) / 100:.2f} %"


def show_latency(seconds: float | None, digits: int = DIGITS) -> str:
    """Return a latency as people write it: 3.4s, 50ms."""
    if seconds is None:
        return "?"
    milliseconds = _show_digits(1000 * seconds, digits)
    return f"{milliseconds}ms" if float(milliseconds) < 1000 else f"{_show_digits(seconds, digits)}s"


def _show_digits(number: float, digits: int) -> str:
    """Return a number with so many digits, and all of those before the point."""
    return f"{number:.{digits}g}" if number < 10**digits - 0.5 else f"{number:.0f}"


def show_apart(seconds: float, other: float | None) -> str:
    """Return a latency with so many digits more that it does not look like another one beside it: 2.004s."""
    texts = (show_latency(seconds, digits) for digits in range(DIGITS, MOST_DIGITS))
    return next((text for text in texts if text != show_latency(other)), show_latency(seconds))


def show_rate(rate: float | None) -> str:
    """Return requests a second: 14.2; a question mark where they are unknown."""
    return "?" if rate is None else f"{rate:.3g}" if rate < 1000 else f"{rate:.0f}"


def show_share(share: float) -> str:
    """Return a part of the requests as people write it: 97%, 99.4%; the last 0.1 % is not told apart."""
    percent = 100 * share
    if percent >= 99.9:
        return "over 99.9%"
    return f"{percent:.3g}%" if percent >= 99 else f"{percent:.0f}%"


def describe_moment(at: float, now: float) -> str:
    """Return a time of day in UTC, with its date unless that is today's: 03:00 UTC."""
    moment, today = (datetime.fromtimestamp(time, UTC) for time in (at, now))
    day = "" if moment.date() == today.date() else f"{moment:%Y-%m-%d} "
    return f"{day}{moment:%H:%M} UTC"


def describe_length(seconds: float) -> str:
    """Return how long something is that was recorded or set: 80s, 1m47s, 2m, 1h05m."""
    minutes, rest = divmod(int(seconds), 60)
    is_exact = seconds < EXACT_BELOW and rest and describe_seconds(seconds).endswith("m")
    return f"{minutes}m{rest:02d}s" if is_exact else describe_seconds(seconds)


def describe_seconds(seconds: float) -> str:
    """Return an age in its largest units: 80s, 6m, 1h05m, 2d3h. One below zero is 0s: clocks differ."""
    whole = max(0, int(seconds))
    if whole < 100:
        return f"{whole}s"
    minutes = whole // 60
    if minutes < 60:
        return f"{minutes}m"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours}h{minutes:02d}m" if minutes else f"{hours}h"
    days, hours = divmod(hours, 24)
    return f"{days}d{hours}h" if hours else f"{days}d"


def align(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a line for each row, with each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
