"""A service's fleet as its pods show it, each cold start, and whether the service is at rest. Pure."""

from collections.abc import Iterable

from millrace_operator.api.conditions import parse_time
from millrace_operator.autoscaler.decide.situation import NODE_SECONDS
from millrace_operator.autoscaler.signals.observation import Fleet, Unplaced
from millrace_operator.kube.kinds import Obj
from millrace_operator.observed.pods import Pod, read_pod


def read_fleet(service: Obj | None, pods: Iterable[Obj], now: float) -> Fleet:
    """Return a service's staying replicas as the API server has them. `now` is in seconds since 1970."""
    staying = [pod for pod in map(read_pod, pods) if pod.is_staying and pod.leaving_since is None]
    return Fleet(
        revisions={pod.name: pod.revision for pod in staying},
        ready=frozenset(pod.name for pod in staying if pod.is_ready),
        cold_starts={pod.name: seconds for pod in staying if (seconds := _find_cold_start(pod)) is not None},
        unplaced={
            pod.name: Unplaced(now - (parse_time(pod.created) or now), pod.unplaced)
            for pod in staying
            if pod.unplaced is not None
        },
        desired=_read_desired(service),
    )


def _find_cold_start(pod: Pod) -> float | None:
    """Return the seconds of a start, without a long wait for room on a node: other pods need not wait so."""
    if pod.start_seconds is None or (pod.placed_seconds or 0.0) < NODE_SECONDS:
        return pod.start_seconds
    return pod.start_seconds - (pod.placed_seconds or 0.0)


def _read_desired(service: Obj | None) -> int | None:
    desired = (service or {}).get("status", {}).get("scaling", {}).get("desiredReplicas")
    return None if desired is None else int(desired)


def list_started(pods: Iterable[Obj]) -> set[str]:
    """Return the pods that are Ready or have a known start."""
    staying = [pod for pod in map(read_pod, pods) if pod.is_staying]
    return {pod.name for pod in staying if pod.is_ready or pod.start_seconds is not None}


def is_at_rest(service: Obj | None) -> bool:
    """Whether a service has no replica, so that a request must wake it."""
    return bool((service or {}).get("status", {}).get("scaling", {}).get("desiredReplicas") == 0)
