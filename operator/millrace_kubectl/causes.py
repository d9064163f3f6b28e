"""Why a count was changed: what had become another since it was changed last. Pure."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from millrace_kubectl.kubectl import Obj
from millrace_kubectl.wording import show_rate
from millrace_operator.api.quantities import parse_number

LEAST_RATIO = 1.1
MOST_CAUSES = 2
EDITS = frozenset({"pin", "spec.replicas", "spec.scaling"})
"""Bindings of a change that a pin or an edit of the spec made, whatever the load did."""
PUSHES = {"minReplicas": 1, "maxReplicas": -1}
"""Bounds that an edit moved, where the count went this way. The other way they stopped it."""
EDIT_REASONS = frozenset({"Pinned", "External", "Bounds"})


class Figure(NamedTuple):
    """A figure of the load, and how it is told."""

    field: str
    words: str


TRAFFIC = (
    Figure("arrivalsPerSecond", "{} -> {} req/s"),
    Figure("promptTokens", "prompts {} -> {} tokens"),
    Figure("generationTokens", "answers {} -> {} tokens"),
)
"""Of each, more asks for more replicas."""
CARRIED = Figure("perReplicaPerSecond", "a replica carries {} -> {} req/s")
"""It follows from the lengths, so it is told where they don't explain the change."""


def describe_causes(change: Obj, former: Obj | None) -> str:
    """Return what moved the way the count did by a tenth or more, the most first; "" where nothing did.

    `former` is the change before. What a pin or an edit made has no cause in the load.
    """
    if former is None or _is_edit(change):
        return ""
    loads = former.get("load") or {}, change.get("load") or {}
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
    """Yield by how much a figure moved this way, and its words."""
    old, new = (parse_number(load.get(figure.field)) for load in (before, after))
    if old is None or new is None or min(old, new) < 0 or old == new:
        return
    ratio = math.inf if min(old, new) == 0 else max(old, new) / min(old, new)
    if ratio >= LEAST_RATIO and (new > old) == (way > 0):
        yield ratio, figure.words.format(show_rate(old), show_rate(new))
