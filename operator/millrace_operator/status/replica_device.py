"""`status.model.device` and `.serving`: what replicas of a revision compute with, and hold. Pure."""

from collections.abc import Iterable
from typing import Any

from millrace_operator.api.status_types import ReplicaStatus

Json = dict[str, Any]
FIELDS = ("device", "serving")
"""Of `status.model`."""


def choose_replica(old: Json, seen: Iterable[ReplicaStatus]) -> Json:
    """Return the fields to write, where `old` are there of the same revision; empty while nothing is known.

    Replicas may differ, as those on two kinds of node. Then one of them is told, and always the same while a
    replica like it is seen: first the one with the smallest KV cache.
    """
    before = {name: old[name] for name in FIELDS if name in old}
    found = sorted(seen, key=lambda one: (one.kv_cache_tokens, _describe(one)))
    told = [{"device": one.device_name, "serving": _describe(one)} for one in found]
    return before if not told or before in told else told[0]


def _describe(replica: ReplicaStatus) -> str:
    return (
        f"{replica.device}, {replica.dtype}, weights {replica.weights}, tensor parallel "
        f"{replica.tensor_parallel}; {replica.kv_cache_tokens} KV tokens, {replica.max_sequences} sequences "
        f"of up to {replica.max_model_length} tokens"
    )
