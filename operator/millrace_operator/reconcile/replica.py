"""`status.model.replica`: what the replicas of one revision compute with and how much they hold. Pure."""

from collections.abc import Iterable
from typing import Any

from millrace_operator.resources.status_types import ReplicaStatus

Json = dict[str, Any]


def choose_replica(old: Json | None, seen: Iterable[ReplicaStatus]) -> Json | None:
    """Return what to write, where `old` is there of the same revision; None while nothing is known of it.

    Replicas may differ, as those on two kinds of node. Then one of them is told, and always the same while a
    replica like it is seen: first the one with the smallest KV cache.
    """
    found = [one.model_dump(mode="json", by_alias=True) for one in seen]
    if not found or old in found:
        return old
    return min(found, key=lambda one: (one["kvCacheTokens"], sorted(map(str, one.values()))))
