"""Who leads: a Lease, renewed every 2 s, ours for 15 s at most. Pure; `leader_election.py` acts on it.

Another holder's clock is never trusted: a Lease is taken over when it has not changed for its duration on
our own monotonic clock.
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
"""At another's Lease: the sooner its last renewal is seen, the sooner it is known to have run out."""
MARGIN_SECONDS = 1
"""Between the end of our last write and the moment when another candidate may lead."""


@dataclass
class LeaseView:
    """What one candidate knows of the Lease. Its times are of the monotonic clock."""

    identity: str
    namespace: str
    name: str
    seen_version: str = ""
    seen_at: float = 0.0
    renewed_at: float | None = None
    runs_out_at: float = math.inf
    """When another's Lease may be taken, unless it is renewed."""
    token_hash: str = ""
    """Of what we show to gateways: who holds the Lease is believed."""

    def is_held(self, now: float) -> bool:
        """Whether writes are still safe: we renewed less than DEADLINE_SECONDS ago."""
        return self.renewed_at is not None and now < self.renewed_at + DEADLINE_SECONDS

    def seconds_held(self, now: float) -> float | None:
        """Return for how long it is held without another renewal; None where it is not held."""
        if self.renewed_at is None or not self.is_held(now):
            return None
        return self.renewed_at + DEADLINE_SECONDS - now

    def seconds_to_write(self, now: float) -> float:
        """Return how long a write that begins now may take, at least 4 s; 0 where none may begin.

        It ends before another candidate may lead. A write that lasted longer could undo that one's.
        """
        if self.renewed_at is None or not self.is_held(now):
            return 0.0
        return self.renewed_at + DURATION_SECONDS - MARGIN_SECONDS - now

    def examine(self, lease: Obj, now: float) -> bool:
        """Note the Lease's version as it is now, and return whether we may take the Lease.

        We may when it is ours, when nobody holds it, or when it has not changed for its whole duration.
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
        """Return how long to wait after a look or a renewal: until another's Lease runs out at most."""
        if self.renewed_at is not None:
            return RETRY_SECONDS
        return min(LOOK_SECONDS, max(0.0, self.runs_out_at - now))

    def render(self, old: Obj | None, wall_time: float, holder: str) -> Obj:
        """Return the Lease to write. It keeps the metadata of `old`, which is the Lease there is, if any."""
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
