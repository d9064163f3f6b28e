"""Why a count was changed: the figures of the load that had moved since the change before. Pure."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from millrace_kubectl.kubectl import Obj
from millrace_kubectl.wording import show_rate
from millrace_operator.api.quantities import parse_number

LEAST_RATIO = 1.1
MOST_CAUSES = 2
EDITS = frozenset({"pin", "spec.replicas", "spec.scaling"})
"""Bindings of a change by a pin or an edit of the spec, independent of the load."""
PUSHES = {"minReplicas": 1, "maxReplicas": -1}
"""Bounds that an edit moved, if the count went this way. Otherwise the bound stopped the change."""
EDIT_REASONS = frozenset({"Pinned", "External", "Bounds"})


class Figure(NamedTuple):
    """A figure of the load, and its text."""

    field: str
    text: str


TRAFFIC = (
    Figure("arrivalsPerSecond", "{} -> {} req/s"),
    Figure("promptTokens", "prompts {} -> {} tokens"),
    Figure("generationTokens", "answers {} -> {} tokens"),
)
"""A larger figure asks for more replicas."""
CARRIED = Figure("perReplicaPerSecond", "a replica carries {} -> {} req/s")
"""It follows from the lengths, so it is shown if they do not explain the change."""


def describe_causes(change: Obj, previous: Obj | None) -> str:
    """Return the figures that moved with the count by a tenth or more, the largest first; "" if none did.

    A change by a pin or an edit has no cause in the load.
    """
    if previous is None or _is_edit(change):
        return ""
    loads = previous.get("load") or {}, change.get("load") or {}
    way = _find_way(change)
    moved = sorted(_find_moved(*loads, way), reverse=True) or list(_look_at(CARRIED, *loads, -way))
    return ", ".join(text for _, text in moved[:MOST_CAUSES])


def _find_way(change: Obj) -> int:
    return 1 if change["to"] > change["from"] else -1


def _is_edit(change: Obj) -> bool:
    binding = change.get("binding")
    is_pushed = PUSHES.get(str(binding)) == _find_way(change)
    return binding in EDITS or is_pushed or change.get("reason") in EDIT_REASONS


def _find_moved(before: dict[str, Any], after: dict[str, Any], way: int) -> Iterator[tuple[float, str]]:
    for figure in TRAFFIC:
        yield from _look_at(figure, before, after, way)


def _look_at(
    figure: Figure, before: dict[str, Any], after: dict[str, Any], way: int
) -> Iterator[tuple[float, str]]:
    """Yield the ratio and the text of a figure that moved this way."""
    old, new = (parse_number(load.get(figure.field)) for load in (before, after))
    if old is None or new is None or min(old, new) < 0 or old == new:
        return
    ratio = math.inf if min(old, new) == 0 else max(old, new) / min(old, new)
    if ratio >= LEAST_RATIO and (new > old) == (way > 0):
        yield ratio, figure.text.format(show_rate(old), show_rate(new))
