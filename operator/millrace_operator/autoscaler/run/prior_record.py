"""The record of a service: its prior, and the changes of its count, in an annotation. Pure.

It is on the ControllerRevision of the revision that serves, and has its time: if a rollout has left several,
the newest counts. A prior is of one kind of accelerator, so the record names that.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from millrace_operator.api.change_record import (
    KEY,
    Change,
    find_newest,
    identify,
    merge_changes,
    read_changes,
    render_changes,
)
from millrace_operator.api.conditions import render_time
from millrace_operator.autoscaler.decide.memory import Memory
from millrace_operator.autoscaler.decide.prior import (
    PRIOR,
    PriorError,
    has_moved,
    parse_prior,
    read_prior,
    render_prior,
)
from millrace_operator.kube.kinds import Obj, is_owned
from millrace_operator.kube.node import HARDWARE_LABELS
from millrace_operator.observed.pods import read_pod
from millrace_runtime import contract

MOST_BYTES = 64_000
"""Of the annotation. All annotations of an object may have 256 KiB together."""
LONGEST_NAME = 512


@dataclass(frozen=True)
class Record:
    """A service's prior and changes, as read or written last, with later changes."""

    name: str | None = None
    """Of the ControllerRevision that has it; None if none has."""
    version: str | None = None
    """The resourceVersion at which it was read or written: a late write must not undo a newer leader's."""
    prior: str = ""
    memory: Memory | None = None
    """The memory in the prior; None if there is none to use."""
    trouble: str = ""
    """Why the prior cannot be used."""
    changes: tuple[Change, ...] = ()
    num_unwritten: int = 0
    """Changes since it was written."""

    def add_changes(self, changes: Sequence[Change]) -> "Record":
        """Return the record with these changes added."""
        if not changes or (self.changes and identify(self.changes[-1]) == identify(changes[-1])):
            return self
        known = {identify(change) for change in self.changes}
        num_new = sum(identify(change) not in known for change in changes)
        merged = tuple(merge_changes(self.changes, changes))
        return replace(self, changes=merged, num_unwritten=self.num_unwritten + num_new)

    def has_news(self, memory: Memory | None) -> bool:
        """Whether there is something to write: a change of the count, or a changed prior."""
        if self.num_unwritten:
            return True
        return memory is not None and memory.model.is_proven and has_moved(self.memory, memory)

    def learn(self, memory: Memory | None, accelerator: str | None) -> "Record":
        """Return the record of this memory. A memory without a proven model or accelerator changes
        nothing.
        """
        if memory is None or accelerator is None or not memory.model.is_proven:
            return self
        text = json.dumps(render_prior(memory, accelerator))
        return replace(self, prior=text, memory=memory, trouble="")

    def recall(self, revision: str | None, accelerator: str | None) -> Memory | None:
        """Return the memory to start with among such replicas; None if there is none for them."""
        if self.memory is None:
            return None
        return read_prior(parse_prior(self.prior), revision, accelerator)

    def render(self, now: float) -> str:
        """Return the annotation. It has MOST_BYTES at most, however long the prior is."""
        known = {"at": render_time(now), KEY: render_changes(self.changes)}
        text = json.dumps({**known, PRIOR: self.prior} if self.prior else known)
        return text if len(text) <= MOST_BYTES else json.dumps(known)


def list_records(children: Iterable[Obj], uid: str) -> list[Obj]:
    """Return the ControllerRevisions of the service with that uid, the newest first."""
    own = (one for one in children if one["kind"] == "ControllerRevision" and is_owned(one, uid))
    return sorted(own, key=lambda one: int(one.get("revision", 0)), reverse=True)


def is_written(record: Obj) -> bool:
    """Whether a ControllerRevision has the annotation."""
    return contract.ANNOTATION_LEARNED in (record["metadata"].get("annotations") or {})


def read_record(found: Sequence[Obj]) -> Record:
    """Return the record of a service from its ControllerRevisions. `trouble` says why a prior is damaged."""
    newest = find_newest(found)
    if newest is None:
        return Record()
    holder = next(one for one in found if find_newest([one]) == newest)
    prior, changes = newest.get(PRIOR, ""), newest.get(KEY, "")
    prior, changes = (text if isinstance(text, str) else "" for text in (prior, changes))
    memory, trouble = None, ""
    try:
        memory = read_prior(parse_prior(prior), None, None) if prior else None
    except PriorError as error:
        trouble = str(error)
    name, version = (holder["metadata"][field] for field in ("name", "resourceVersion"))
    return Record(
        name=name,
        version=version,
        prior=prior,
        memory=memory,
        trouble=trouble,
        changes=tuple(read_changes(changes)),
    )


class Serving(NamedTuple):
    """The revision and accelerator that serve; None if there is none, or there are several."""

    revision: str | None
    accelerator: str | None


def find_serving(pods: Iterable[Obj]) -> Serving:
    """Return revision and accelerator of the Ready pods; of all staying pods if none is Ready."""
    staying = [(read_pod(pod), pod) for pod in pods]
    staying = [(facts, pod) for facts, pod in staying if facts.is_staying]
    ready = [(facts, pod) for facts, pod in staying if facts.is_ready] or staying
    revisions = {facts.revision for facts, _ in ready}
    accelerators = {describe_accelerator(pod) for _, pod in ready}
    return Serving(
        revisions.pop() if len(revisions) == 1 else None,
        accelerators.pop() if len(accelerators) == 1 else None,
    )


def find_accelerator(pods: Iterable[Obj], revision: str | None) -> str | None:
    """Return the accelerator of a revision's pods; None if there are no pods, or several accelerators."""
    return find_serving(pod for pod in pods if read_pod(pod).revision == revision).accelerator


def describe_accelerator(pod: Obj) -> str:
    """Return a pod's devices with their numbers, or else its other limits, and the hardware it asks for."""
    spec: dict[str, Any] = pod.get("spec") or {}
    limits = _find_limits(spec)
    devices = {name: amount for name, amount in limits.items() if "/" in name} or limits
    selector = spec.get("nodeSelector") or {}
    asked = {label: selector[label] for label in HARDWARE_LABELS if label in selector}
    return ", ".join(f"{name}={value}" for name, value in sorted((devices | asked).items()))[:LONGEST_NAME]


def _find_limits(spec: dict[str, Any]) -> dict[str, Any]:
    for container in spec.get("containers") or ():
        if container.get("name") == contract.CONTAINER_REPLICA:
            return (container.get("resources") or {}).get("limits") or {}
    return {}
