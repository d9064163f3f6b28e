"""What the autoscaler has learned of a service, and the changes of its count: an annotation. Pure.

It is on the record of the revision that serves. One that is written names its time: where a rollout has left
several, the newest counts.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

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
from millrace_operator.kube.kinds import Obj
from millrace_operator.observed.snapshot import is_owned
from millrace_runtime import contract

MOST_BYTES = 64_000
"""Of the annotation. An object's may have 256 KiB in all."""


@dataclass(frozen=True)
class Record:
    """What is known of a service, and what of it is not written yet."""

    name: str | None = None
    """Of the ControllerRevision that has it; None where none has."""
    version: str | None = None
    """The resourceVersion that it was read or written at: what is late must not undo a newer leader's."""
    prior: str = ""
    memory: Memory | None = None
    """As the prior has it; None where it has none that can be used."""
    trouble: str = ""
    """Why the prior cannot be used."""
    changes: tuple[Change, ...] = ()
    num_unwritten: int = 0
    """Changes that came since it was written."""

    def note(self, changes: Sequence[Change]) -> "Record":
        """Return the record with these changes too."""
        if not changes or (self.changes and identify(self.changes[-1]) == identify(changes[-1])):
            return self
        known = {identify(change) for change in self.changes}
        num_new = sum(identify(change) not in known for change in changes)
        merged = tuple(merge_changes(self.changes, changes))
        return replace(self, changes=merged, num_unwritten=self.num_unwritten + num_new)

    def has_news(self, memory: Memory | None) -> bool:
        """Whether there is something to write: a change of the count, or a figure that has moved."""
        if self.num_unwritten:
            return True
        return memory is not None and memory.model.is_proven and has_moved(self.memory, memory)

    def learn(self, memory: Memory | None, accelerator: str | None) -> "Record":
        """Return the record of this memory. One without a model, or of nobody knows what, replaces none."""
        if memory is None or accelerator is None or not memory.model.is_proven:
            return self
        text = json.dumps(render_prior(memory, accelerator))
        return replace(self, prior=text, memory=memory, trouble="")

    def recall(self, revision: str | None, accelerator: str | None) -> Memory | None:
        """Return the memory to begin with among such replicas; None where there is none for them."""
        if self.memory is None:
            return None
        return read_prior(parse_prior(self.prior), revision, accelerator)

    def render(self, now: float) -> str:
        """Return the annotation. Whatever a prior says, it has MOST_BYTES at most."""
        known = {"at": render_time(now), KEY: render_changes(self.changes)}
        text = json.dumps({**known, PRIOR: self.prior} if self.prior else known)
        return text if len(text) <= MOST_BYTES else json.dumps(known)


def list_records(children: Iterable[Obj], uid: str) -> list[Obj]:
    """Return the records of the revisions of the service of that uid, the newest first."""
    own = (one for one in children if one["kind"] == "ControllerRevision" and is_owned(one, uid))
    return sorted(own, key=lambda one: int(one.get("revision", 0)), reverse=True)


def is_written(record: Obj) -> bool:
    """Whether a revision's record has the annotation."""
    return contract.ANNOTATION_LEARNED in (record["metadata"].get("annotations") or {})


def read_record(found: Sequence[Obj]) -> Record:
    """Return what is known of a service, by the records of its revisions. What is damaged is told."""
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
