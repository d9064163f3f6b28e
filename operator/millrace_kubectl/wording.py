"""The texts that the plugin prints, each in one place, and how it writes figures, times and tables. Pure."""

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
    "tooFew": "fewer replicas were too few for such a load in the last hour",
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
"""Texts by status.scaling.binding, after the load. For an unknown one status.scaling.message stands."""

LIMITS = {"saturation": "saturated beyond", "kvCache": "KV-bound", "slots": "bound by its slots"}
"""The limits of a replica beside its objectives."""

REMEDIES = {
    "Conflict": "find the owner of that object, and rename it or this service",
    "Contested": "delete that autoscaler, or let it scale the InferenceService in mode External",
    "ChildRefused": "follow the API server's message",
    "PodsRefused": "change the policy",
    "Quota": "raise the quota",
    "PodFailed": "follow the node's message",
    "ImageUnavailable": "make the image pullable from the nodes",
    "ContainerRefused": "follow the node's message",
    "SecretMissing": "create the Secret, or correct its name in the spec",
    "DoesNotFit": "write the setting that would fit, or ask for a larger device",
    "CacheUnusable": "follow the message about the claim",
    "ClaimMissing": "create the claim, or correct its name in spec.model.uri",
    "FetchFailed": "follow the source's message, or correct spec.model",
    "ModelInvalid": "correct spec.model",
    "DeviceUnusable": "check the node's driver, or remove nvidia.com/gpu from spec.resources.limits",
    "SettingsInvalid": "correct the setting that the message names",
    "OutOfMemory": "raise spec.resources.limits.memory",
    "Crashing": "read the pod's log",
    "Killed": "read the pod's Events",
    "SidecarFailed": "read that container's log, and find out what adds it to the pods",
    "ProbeFailed": "read the pod's log and its Events",
    "NotReady": "see that the pod's node is Ready, and read the pod's Events",
    "RolledBack": "correct the named cause and edit the spec, or undo the last edit",
    "Aborted": "edit the spec, or undo the last edit",
    "DeadlineExceeded": "read the pod's log, or wait",
    "Late": "read the pod's log, or raise spec.rollout.progressDeadline",
}
"""Texts by the reason of Degraded, or by a more specific name if the reason says too little."""

DIGITS, MOST_DIGITS = 3, 9
"""The usual and the largest number of digits of a latency."""

NO_OPERATOR = "see that an operator leads: kubectl get lease -A"
NOT_SIGNALLED = "see that Prometheus answers and scrapes its pods"
NAME_APART = "let clients write {full}, or have the platform pin the name: the chart's gateway.shortNames"
KEYS_UNREAD = {
    "SecretNamespaceNotReadable": "have the platform add it to the chart's gateway.secretNamespaces",
    "SecretNameMissing": "write spec.access.authentication.secretName: kubectl millrace key create makes one",
}
"""Texts by the reason of AccessReady."""
NOT_REACHED = "raise its target, or give each replica more CPU or a GPU"
NOT_JUDGED = "its target is between two bounds of the histogram"
CHOOSE_BOUND = "choose a bound as the target of {name}: docs/how-to/objectives.md"
NOTHING = "nothing"
OBEY = "follow the message; a newer kubectl millrace may say more"
"""For a reason that only a newer operator knows."""
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
"""Below ten minutes a length has seconds: beside a count people compute with it."""


def name_objective(metric: str, percentile: int) -> str:
    """Return an objective's short name: TTFT p95."""
    return f"{METRICS.get(metric, metric)} p{percentile}"


def strip_unprintable(text: str) -> str:
    """Return the text without characters that control a terminal. Its lines stay.

    A condition may contain the last line of a pod's log, which a prompt may have chosen.
    """
    return "".join(char for char in text if char.isprintable() or char == "\n")


def shorten(text: str, most: int = 100) -> str:
    """Return the text's first line, cut if it is long; -v shows all of it."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def show_whole_share(share: float) -> str:
    """Return a share of requests in percent, rounded down: 99.999 % is not all."""
    return f"{math.floor(10_000 * share + 1e-6) / 100:.2f} %"


def show_latency(seconds: float | None, digits: int = DIGITS) -> str:
    """Return a latency as people write it: 3.4s, 50ms."""
    if seconds is None:
        return "?"
    milliseconds = _show_digits(1000 * seconds, digits)
    return f"{milliseconds}ms" if float(milliseconds) < 1000 else f"{_show_digits(seconds, digits)}s"


def _show_digits(number: float, digits: int) -> str:
    """Return a number with some digits, and all digits before the point."""
    return f"{number:.{digits}g}" if number < 10**digits - 0.5 else f"{number:.0f}"


def show_apart(seconds: float, other: float | None) -> str:
    """Return a latency with enough digits to differ from another one beside it: 2.004s."""
    texts = (show_latency(seconds, digits) for digits in range(DIGITS, MOST_DIGITS))
    return next((text for text in texts if text != show_latency(other)), show_latency(seconds))


def show_count(count: int | None) -> str:
    """Return a count; a question mark if it is unknown."""
    return "?" if count is None else str(count)


def show_rate(rate: float | None) -> str:
    """Return requests a second: 14.2; a question mark if they are unknown."""
    return "?" if rate is None else f"{rate:.3g}" if rate < 1000 else f"{rate:.0f}"


def show_share(share: float) -> str:
    """Return a part of the requests as people write it: 97%, 99.4%, over 99.9%."""
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
    """Return a recorded or configured length: 80s, 1m47s, 2m, 1h05m."""
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
