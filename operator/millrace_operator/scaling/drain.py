"""Which replicas leave when there are too many, and when. Pure.

Replicas on nodes that are being emptied leave first, then the idlest. They are marked: gateways send a marked
pod nothing new. The Deployment shrinks when every gateway has seen the mark and has no request at the pod, or
after the pod's grace. Until then a marked pod is as good as any other, and is kept if it is needed again.

Some of several marked pods may finish before the others. They get a lower cost, because the ReplicaSet
controller deletes the lowest first. It reads the costs from a cache of its own, so the count waits for them.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from millrace_operator.api.conditions import render_time
from millrace_operator.observed.pods import DELETION_COST, Pod
from millrace_operator.observed.snapshot import PodLoad
from millrace_runtime.contract import ANNOTATION_LEAVING

LEAVING_COST = "-100"
DONE_COST = "-200"
SILENT_SECONDS = 10.0
"""For so long an idle pod waits for silent gateways. It finishes its remaining requests by itself."""


@dataclass(frozen=True)
class Mark:
    """Annotations to set on a pod, or to remove."""

    judged: Pod
    """The pod as it was seen. A mark names its version: a late mark must not undo a newer one."""
    annotations: Mapping[str, str | None]
    """As in a merge patch: None removes one."""
    why: str

    @property
    def pod(self) -> str:
        """The pod's name."""
        return self.judged.name

    @property
    def uid(self) -> str:
        """The pod's uid."""
        return self.judged.uid

    @property
    def cost(self) -> str | None:
        """The deletion cost; None if the mark is removed."""
        return self.annotations[DELETION_COST]

    def renew(self, pod: Pod) -> Self | None:
        """Return the mark for the pod as it is now; None if the pod has to be judged again.

        Another leader may have marked it meanwhile. Other changes of a pod don't matter.
        """
        return replace(self, judged=pod) if _list_judged(pod) == _list_judged(self.judged) else None


@dataclass(frozen=True)
class Shrink:
    """The result for one Deployment: marks to set first, and the count that it may have now."""

    count: int
    marks: tuple[Mark, ...] = ()
    is_waiting: bool = False
    """Whether the operator waits for requests of a marked pod."""


@dataclass(frozen=True)
class Traffic:
    """The known requests at pods, and how long to wait for them."""

    now: float
    """Seconds since 1970."""
    patience: float
    """Seconds from a mark on."""
    running: Mapping[str, float] = field(default_factory=dict)
    """Requests in progress by pod name, from the last scrape."""
    loads: Mapping[str, PodLoad] = field(default_factory=dict)
    """By uid."""
    is_resting: bool = False
    """Whether the last replicas leave for lack of requests: a request meanwhile keeps them."""
    departures: Container[str] = frozenset()
    """Nodes that are being emptied."""
    is_mark_refused: bool = False
    """Whether the API server refuses marks. Then replicas leave without one, and finish their requests."""

    def may_go(self, pod: Pod) -> bool:
        """Whether a marked pod has nothing left to wait for."""
        if pod.leaving_since is None:  # an older operator marked it
            return True
        load = self.loads.get(pod.uid, PodLoad(0, has_left=False, silent_since=pod.leaving_since))
        if self.now >= pod.leaving_since + self.patience:
            return True
        if load.silent_since is None or load.in_flight:
            return load.has_left and not load.in_flight
        return self.now >= max(pod.leaving_since, load.silent_since) + SILENT_SECONDS

    def rank(self, pod: Pod) -> tuple[bool, float, float]:
        """Sort pods on nodes that are being emptied before others, and then from the idlest on.

        The scraped numbers include requests that bypass the gateways.
        """
        scraped = self.running.get(pod.name, 0.0)
        return (not pod.leaves_with(self.departures), self._count(pod), scraped)

    def _count(self, pod: Pod) -> float:
        """Return the requests at a pod. While a gateway is silent, the reported ones are a lower bound."""
        load, scraped = self.loads.get(pod.uid), self.running.get(pod.name, 0.0)
        if load is None:
            return scraped
        return load.in_flight if load.silent_since is None else max(load.in_flight, scraped)

    def describe_load(self, pod: Pod) -> str:
        """Return the number of a pod's requests in words."""
        load = self.loads.get(pod.uid)
        is_reported = load is not None and (load.silent_since is None or load.in_flight)
        is_known = is_reported or pod.name in self.running
        return f"{self._count(pod):g} requests in flight" if is_known else "its load is not known"


def plan_shrink(count: int, current: int, pods: Sequence[Pod], traffic: Traffic) -> Shrink:
    """Return the count to write: `current` while pods that must leave are not marked or not finished.

    `pods` are one revision's that are not terminating. Pods that are not Ready leave first anyway, so only
    Ready ones need a mark.
    """
    marked = [pod for pod in pods if pod.is_marked]
    if count >= current:
        may_unmark = len(pods) <= count and not traffic.is_mark_refused
        return Shrink(count, tuple(map(_unmark, marked)) if may_unmark else ())
    is_unconditional = count == 0 and not traffic.is_resting  # somebody asks for none, even if requests come
    if is_unconditional or traffic.is_mark_refused:
        return Shrink(count)  # each finishes its requests
    # Two stable sorts: the idlest first, and the youngest of equally idle ones.
    ready = sorted((p for p in pods if p.is_ready), key=lambda pod: (pod.created, pod.name), reverse=True)
    ready.sort(key=traffic.rank)
    leaving = sorted((pod for pod in ready if pod.is_marked), key=lambda pod: pod.deletion_cost != DONE_COST)
    num_to_mark = max(0, len(ready) - count) - len(leaving)
    if num_to_mark > 0:
        candidates = [pod for pod in ready if not pod.is_marked]
        return Shrink(current, tuple(_mark(pod, traffic) for pod in candidates[:num_to_mark]))
    if num_to_mark < 0:  # they are needed again
        return Shrink(current, tuple(map(_unmark, leaving[num_to_mark:])))
    return _let_go(count, current, leaving, traffic)


def _let_go(count: int, current: int, leaving: Sequence[Pod], traffic: Traffic) -> Shrink:
    """Return the count without the marked pods that have finished."""
    done = [pod for pod in leaving if traffic.may_go(pod)]
    if len(done) == len(leaving):
        return Shrink(count)
    unsaid = [pod for pod in done if pod.deletion_cost != DONE_COST]
    if unsaid:
        return Shrink(current, tuple(map(_mark_done, unsaid)), is_waiting=True)
    return Shrink(min(current, count + len(leaving) - len(done)), is_waiting=True)


def _mark(pod: Pod, traffic: Traffic) -> Mark:
    annotations = {DELETION_COST: LEAVING_COST, ANNOTATION_LEAVING: render_time(traffic.now)}
    return Mark(pod, annotations, f"it leaves first ({traffic.describe_load(pod)})")


def _mark_done(pod: Pod) -> Mark:
    return Mark(pod, {DELETION_COST: DONE_COST}, "no request keeps it any longer")


def _unmark(pod: Pod) -> Mark:
    annotations = {DELETION_COST: None, ANNOTATION_LEAVING: None}
    return Mark(pod, annotations, "no replica has to leave")


def _list_judged(pod: Pod) -> tuple[object, ...]:
    """Return the facts on which a mark depends: the pod, its mark, and whether it serves."""
    return pod.uid, pod.deletion_cost, pod.leaving_since, pod.is_ready, pod.is_staying
