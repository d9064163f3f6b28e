"""When the pods of a revision last got on with their model. Pure."""

from collections.abc import Iterable
from typing import NamedTuple

from millrace_operator.reconcile.fetch_memory import is_unheard, was_late
from millrace_operator.reconcile.observed import Observed
from millrace_operator.reconcile.pods import Pod
from millrace_operator.reconcile.snapshot import Snapshot
from millrace_operator.resources.conditions import Reason

OTHERS_SECONDS = 30.0
"""As long as a pod that fetches takes for a step at most."""


class FetchTimes(NamedTuple):
    """When a pod last had more of its model than before, in seconds since 1970; None where none told."""

    written: float | None = None
    """As status has it. It tells of one pod; the others count later, so that no step of each is a write."""
    newest: float | None = None
    """Of any of them. Deadlines count from here, as they do from the first look of a leader that has still to
    hear whether one gets on."""


NO_TIMES = FetchTimes()


def find_fetch_times(snapshot: Snapshot, observed: Observed, revision: str) -> FetchTimes:
    """Return when pods of a revision got on. That a fetch has ended is progress too."""
    pods, now = observed.pods_of(revision), observed.moment.now
    fetching = {pod.name for pod in pods if pod.is_fetching}
    told = {name: snapshot.fetched[name] for name in fetching & snapshot.fetched.keys()}
    is_late = was_late(snapshot, "Progressing", revision)
    # A leader that knows nothing of a download takes its container's begin for progress: late it stays.
    times = {name: one.at for name, one in told.items() if one.gets_on or not is_late}
    ends = [pod.fetched_at for pod in pods if pod.fetched_at is not None]
    if observed.state(revision).num_ended:
        ends = []  # where pods fail and are made anew, the ends of their fetches would be progress for ever
    unheard = [name for name in fetching | _list_failed(pods) if is_unheard(told.get(name))]
    looks = [snapshot.memory.led_since] if unheard and not is_late else []
    newest = max((*times.values(), *ends, *looks), default=None)
    written = max(times[min(times)], max(times.values()) - OTHERS_SECONDS) if times else None
    return FetchTimes(written, None if newest is None else min(newest, now))


def _list_failed(pods: Iterable[Pod]) -> set[str]:
    """Return the names of those whose fetch has ended with an error, and begins anew after a while."""
    return {pod.name for pod in pods if pod.cause and pod.cause.reason == Reason.FETCH_FAILED}
