"""The values from which a status is rendered, and the causes that follow from them. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from millrace_operator.api.conditions import Reason
from millrace_operator.api.model_uri import is_fetched
from millrace_operator.api.types import Spec
from millrace_operator.kube.kinds import JOB, POD, ObjectId
from millrace_operator.model.claims import judge_claim
from millrace_operator.model.fit import explain_shortage
from millrace_operator.model.pending_revision import Pending, is_begun
from millrace_operator.observed.pods import Pod
from millrace_operator.observed.revisions import Observed
from millrace_operator.observed.snapshot import Snapshot
from millrace_operator.render.child import revision_name
from millrace_operator.render.settings import RenderSettings
from millrace_operator.rollout.surge import Method
from millrace_operator.rollout.targets import Targets
from millrace_operator.scaling.competing_autoscalers import explain_rival
from millrace_operator.scaling.count import Count
from millrace_operator.scaling.rest import Wake, find_wake
from millrace_operator.status.causes import Cause, explain_refusal


@dataclass(frozen=True)
class TakenNames:
    """Names of the service's children that other objects have."""

    foreign: frozenset[ObjectId] = frozenset()
    """Objects of others."""
    left_over: frozenset[ObjectId] = frozenset()
    """Objects of a service that is gone: Kubernetes deletes them soon."""

    @property
    def all(self) -> frozenset[ObjectId]:
        """Both kinds of names."""
        return self.foreign | self.left_over


@dataclass(frozen=True, kw_only=True)
class StatusInputs:
    """The values from which a status is rendered."""

    settings: RenderSettings
    snapshot: Snapshot
    spec: Spec
    observed: Observed
    count: Count
    targets: Targets
    names: TakenNames = TakenNames()

    @property
    def now(self) -> float:
        """The time of the plan, in seconds since 1970."""
        return self.observed.moment.now

    @property
    def deadline_seconds(self) -> float:
        """`rollout.progressDeadline`."""
        return self.spec.rollout.progress_deadline_seconds

    @property
    def pending(self) -> Pending | None:
        """The revision that the spec asks for, if it cannot be made yet."""
        return self.targets.known.pending

    @property
    def old(self) -> dict[str, Any]:
        """The old status."""
        return self.snapshot.status

    @property
    def name(self) -> str:
        """The service's name."""
        return str(self.snapshot.service["metadata"]["name"])

    @property
    def namespace(self) -> str:
        """The service's namespace."""
        return str(self.snapshot.service["metadata"]["namespace"])

    @property
    def place(self) -> str:
        """The service's name and namespace, as arguments of kubectl."""
        return f"{self.name} -n {self.namespace}"

    @property
    def revision(self) -> str:
        """The revision to run."""
        return self.targets.choice.chosen

    @property
    def runs_another(self) -> bool:
        """Whether the revision to run is not the one that the spec asks for, because that one cannot run."""
        waits_for = self.pending.revision if self.pending else self.targets.choice.asked
        return self.targets.known.error is not None or waits_for != self.targets.choice.chosen

    @property
    def current_revision(self) -> str | None:
        """The last revision that served with all its replicas."""
        return self.revision if self.targets.step.is_done else self.old.get("currentRevision")

    @property
    def is_judged(self) -> bool:
        """Whether status already has the fit of the revision that the spec asks for."""
        is_same = self.targets.choice.asked == self.old.get("updateRevision")
        return is_same and is_begun(self.snapshot, self.targets.choice.asked)

    @property
    def wake(self) -> Wake | None:
        """The wake from zero in progress; None without one, or once a replica is Ready."""
        if self.observed.num_ready or self.count.desired == 0:
            return None
        return find_wake(self.spec, self.old, self.count.changes, self.now)

    @property
    def is_late(self) -> bool:
        """Whether the rollout has made no progress for longer than its deadline."""
        return self.rollout() is not None and self.targets.progress.seconds_left(self.deadline_seconds) <= 0

    def rollout(self) -> dict[str, Any] | None:
        """Return `status.rollout`; None if no revision is taking over."""
        is_made = self.pending is None or self.pending.revision != self.revision
        if not is_made or self.current_revision == self.revision or self.count.desired == 0:
            return None
        return {**self.targets.progress.render(), "method": self.targets.step.method.value}

    def causes(self) -> list[Cause]:
        """Return the causes of all trouble, the gravest first: conflicts, refusals, then pods."""
        return [*self.own_causes(), *self._list_causes(self._sorted_pods())]

    def find_cause(self, pod: Pod) -> Cause | None:
        """Return why a pod does not serve. A shortage on all nodes explains more than the scheduler does."""
        if pod.unplaced is None or self._shortage is None or pod.revision != self.targets.choice.asked:
            return pod.cause
        return Cause(Reason.UNSCHEDULABLE, f"pod {pod.name} cannot be scheduled: {self._shortage}")

    @cached_property
    def _shortage(self) -> str | None:
        return explain_shortage(self.spec, self.snapshot.nodes.gpus.values())

    def _list_causes(self, pods: Iterable[Pod]) -> list[Cause]:
        return [cause for cause in map(self.find_cause, pods) if cause]

    def grave_causes(self) -> list[Cause]:
        """Return the causes without those of pods for which the present nodes may still have room."""
        moment = self.observed.moment
        pods = [pod for pod in self._sorted_pods() if moment.has_waited(pod) or not self._may_wait(pod)]
        rivals = map(explain_rival, self.snapshot.obstacles.rivals)
        late = (self._explain_lateness(pod) for pod in self._list_loading() if self._late_at(pod) <= self.now)
        late_fetch = [self.pending.late] if self.pending and self.pending.late else []
        return [*self.own_causes(), *self._list_causes(pods), *late_fetch, *late, *rivals]

    def _may_wait(self, pod: Pod) -> bool:
        """Whether a pod waits for room that other pods on a node may leave."""
        return pod.unplaced is not None and self.find_cause(pod) == pod.cause

    def late_after(self) -> list[float]:
        """Return after how many seconds the pods that load now are late."""
        return [
            self._late_at(pod) - self.now + 1 for pod in self._list_loading() if self._late_at(pod) > self.now
        ]

    def _list_loading(self) -> list[Pod]:
        """Return the pods that load the model, except in a rollout, which has a deadline of its own."""
        pods = () if self.rollout() else self._sorted_pods()
        return [pod for pod in pods if pod.is_running and not pod.has_started and pod.cause is None]

    def _late_at(self, pod: Pod) -> float:
        """Return when a pod is late with loading. Its wait for a node does not count."""
        return max(pod.created_at, pod.running_since or 0.0) + self.deadline_seconds

    def _explain_lateness(self, pod: Pod) -> Cause:
        deadline = self.spec.rollout.progress_deadline
        return Cause(
            Reason.DEADLINE_EXCEEDED,
            f"pod {pod.name} has been loading the model for longer than rollout.progressDeadline "
            f"({deadline}): raise that, or read the pod's log and delete the pod",
        )

    def own_causes(self) -> list[Cause]:
        """Return the causes of the service itself, apart from its pods."""
        error = self.targets.known.error
        unserved = [] if error is None else [Cause(Reason.SETTINGS_INVALID, str(error))]
        obstacle = self.pending.cause if self.pending else judge_claim(self.spec, self.snapshot.model.claim)
        unserved += [] if obstacle is None else [obstacle]
        names = sorted(self.names.foreign)
        found = unserved + [Cause(Reason.CONFLICT, explain_conflict(kind, name)) for kind, name in names]
        found += [
            explain_refusal(kind, name, message)
            for (kind, name), message in sorted(self.snapshot.obstacles.refusals.items())
            if (kind, name) not in self._optional_jobs  # no serving replica waits for them
            and (kind != POD.kind or self._wants_mark(name))
        ]
        found += self.observed.refusals
        is_short = self.observed.num_ready < self.count.desired
        return found + [pod.cause for pod in self.observed.failed if pod.cause and is_short][:1]

    def _wants_mark(self, name: str) -> bool:
        """Whether a pod still has to be marked, or has to lose its mark."""
        pods = [pod for pod in self.observed.pods if pod.name == name]
        return any(pod.is_marked or self.observed.num_wanted > self.count.desired for pod in pods)

    @property
    def _optional_jobs(self) -> set[tuple[str, str]]:
        """The Job that looks at a model in a claim."""
        revision = self.pending.revision if self.pending else self.targets.choice.asked
        is_at_hand = not is_fetched(self.spec.model.uri)
        return {(JOB.kind, revision_name(self.snapshot.service, revision))} if is_at_hand else set()

    def _sorted_pods(self) -> list[Pod]:
        return sorted(self.observed.pods, key=lambda pod: (pod.revision != self.revision, pod.name))

    @property
    def waits_for_its_owner(self) -> bool:
        """Whether a rollout has no room, which only another strategy would make."""
        is_stuck = self.observed.state(self.revision).lacks_room and self.targets.step.method is Method.SURGE
        return is_stuck and self.rollout() is not None and len(self.targets.step.counts) > 1


def explain_conflict(kind: str, name: str) -> str:
    """Return that somebody else's object has a child's name, and what to do."""
    return (
        f"a {kind} named {name} exists that is not this service's; it is left alone. Delete or rename it, or "
        "give the InferenceService another name"
    )
