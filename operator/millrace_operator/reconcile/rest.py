"""Since when a service with minReplicas 0 has had nothing to do. Pure; `scale.py` decides what follows."""

from dataclasses import dataclass

from millrace_operator.reconcile.observed import Observed
from millrace_operator.reconcile.snapshot import Snapshot
from millrace_operator.resources.conditions import Reason, find_condition, parse_time


@dataclass(frozen=True)
class Rest:
    """Whether a service has requests, and since when it has had none."""

    is_asked: bool
    idle_since: float | None
    """Seconds since 1970; None while it is not known, or nothing serves that could be idle."""

    def is_due(self, seconds: float, now: float) -> bool:
        """Whether it has been idle for so long."""
        return self.idle_since is not None and now >= self.idle_since + seconds


AWAKE = Rest(is_asked=False, idle_since=None)


def find_rest(snapshot: Snapshot, observed: Observed) -> Rest:
    """Return what the gateways tell, counted from when a replica could have answered.

    A service whose first replica starts for longer than scaleToZeroAfter would otherwise never serve.
    """
    demand, status = snapshot.demand, snapshot.service.get("status", {})
    is_asked = demand.num_open > 0
    ready = find_condition(status, "Ready") or {}
    is_serving = observed.num_ready > 0 and ready.get("reason") == Reason.SERVING
    if is_asked or demand.idle_since is None or not is_serving:
        return Rest(is_asked, None)
    changes = status.get("scaling", {}).get("changes", [])
    times = [ready.get("lastTransitionTime"), *(change["at"] for change in changes[-1:])]
    return Rest(is_asked, max(demand.idle_since, *(parse_time(time) or 0.0 for time in times)))
