"""What a service of the same name has left: it is waited for, for a time. Pure.

A service may be deleted and made anew. Garbage collection deletes what the former one had in a moment, and
then the names are free. So there is no conflict that somebody has to mend, unless nobody collects it.
"""

from collections.abc import Set as AbstractSet

from millrace_operator.api.conditions import parse_time
from millrace_operator.kube.kinds import Obj
from millrace_operator.observed.snapshot import ObjectId

LEFT_OVER_SECONDS = 180.0
"""From the creation of the service that is there now, by the API server's clock."""


def find_left_over(service: Obj, owned: frozenset[ObjectId], now: float) -> frozenset[ObjectId]:
    """Return which of the objects that a former service owned are to be gone soon.

    `now` is seconds since 1970.
    """
    made = parse_time(service["metadata"].get("creationTimestamp"))
    # Where our clock goes wrong by more than that, nobody can tell how long it takes.
    is_new = made is not None and abs(now - made) < LEFT_OVER_SECONDS
    return owned if is_new else frozenset()


def explain_left_over(left_over: AbstractSet[ObjectId]) -> str:
    """Return what is waited for. One object is named: each write of status would name fewer of them."""
    kind, name = min(left_over)
    return f"another InferenceService of this name has left {kind} {name}; Kubernetes is to delete it first"
