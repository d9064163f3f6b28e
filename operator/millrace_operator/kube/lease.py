"""The rules of the Lease: its holder leads, renews it every 2 s, and keeps it for at most 15 s. Pure.

`leader_election.py` acts on them. They trust no other holder's clock: a candidate may take over a Lease that
has not changed for its duration on the candidate's own monotonic clock.
"""

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from millrace_operator.kube.kinds import LEASE, Obj
from millrace_runtime import contract

DURATION_SECONDS = 15
DEADLINE_SECONDS = 10
RETRY_SECONDS = 2
LOOK_SECONDS = 1
"""Between two looks at another's Lease. The sooner we see its last renewal, the sooner we know its end."""
MARGIN_SECONDS = 1
"""Between the end of our last write and the time when another candidate may lead."""


@dataclass
class LeaseView:
    """A candidate's knowledge of the Lease. Its times are of the monotonic clock."""

    identity: str
    namespace: str
    name: str
    seen_version: str = ""
    seen_at: float = 0.0
    renewed_at: float | None = None
    runs_out_at: float = math.inf
    """When another's Lease may be taken over, unless it is renewed."""
    token_hash: str = ""
    """The hash of our token for the gateways, which believe the holder of the Lease."""

    def is_held(self, now: float) -> bool:
        """Whether writes are still safe: we renewed less than DEADLINE_SECONDS ago."""
        return self.renewed_at is not None and now < self.renewed_at + DEADLINE_SECONDS

    def seconds_held(self, now: float) -> float | None:
        """Return how much longer the Lease is held without a renewal; None if it is not held."""
        if self.renewed_at is None or not self.is_held(now):
            return None
        return self.renewed_at + DEADLINE_SECONDS - now

    def seconds_to_write(self, now: float) -> float:
        """Return how long a write that begins now may take: at least 4 s, or 0 if none may begin.

        It ends before another candidate may lead. A longer write could undo the new leader's.
        """
        if self.renewed_at is None or not self.is_held(now):
            return 0.0
        return self.renewed_at + DURATION_SECONDS - MARGIN_SECONDS - now

    def examine(self, lease: Obj, now: float) -> bool:
        """Record the present version of the Lease, and return whether we may take it.

        We may if it is ours, if nobody holds it, or if it has not changed for its whole duration.
        """
        version = lease["metadata"].get("resourceVersion", "")
        if version != self.seen_version:
            self.seen_version, self.seen_at = version, now
        holder = lease.get("spec", {}).get("holderIdentity") or ""
        self.runs_out_at = self.seen_at + (
            lease.get("spec", {}).get("leaseDurationSeconds") or DURATION_SECONDS
        )
        return holder in ("", self.identity) or now >= self.runs_out_at

    def seconds_to_look(self, now: float) -> float:
        """Return how long to wait after a look or a renewal: at most until another's Lease runs out."""
        if self.renewed_at is not None:
            return RETRY_SECONDS
        return min(LOOK_SECONDS, max(0.0, self.runs_out_at - now))

    def render(self, old: Obj | None, wall_time: float, holder: str) -> Obj:
        """Return the Lease to write. It keeps the metadata of the existing Lease `old`, if any."""
        before: dict[str, Any] = (old or {}).get("spec", {})
        stamp = datetime.fromtimestamp(wall_time, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        is_change = (before.get("holderIdentity") or "") != holder
        spec = {
            "holderIdentity": holder,
            "leaseDurationSeconds": DURATION_SECONDS if holder else 1,
            "renewTime": stamp,
            "acquireTime": stamp if is_change else before.get("acquireTime", stamp),
            "leaseTransitions": int(before.get("leaseTransitions") or 0) + int(is_change and bool(before)),
        }
        metadata = dict((old or {}).get("metadata", {"namespace": self.namespace, "name": self.name}))
        if holder and self.token_hash:
            metadata["annotations"] = {
                **(metadata.get("annotations") or {}),
                contract.ANNOTATION_PROOF: self.token_hash,
            }
        return {"apiVersion": LEASE.api_version, "kind": LEASE.kind, "metadata": metadata, "spec": spec}
