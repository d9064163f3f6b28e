"""The ConfigMap of a service with what the autoscaler has learned and the changes of the count. Pure."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from millrace_operator.autoscale.memory import Memory
from millrace_operator.autoscale.prior import PriorError, has_moved, parse_prior, read_prior, render_prior
from millrace_operator.cluster.kinds import CONFIG_MAP, Obj
from millrace_operator.reconcile.render.metadata import render_child
from millrace_operator.reconcile.snapshot import is_of_former, is_owned
from millrace_operator.resources.change_record import (
    KEY,
    Change,
    identify,
    merge_changes,
    read_changes,
    record_name,
    render_changes,
)

PRIOR = "prior"
"""Where in the ConfigMap the prior is, as JSON."""


@dataclass(frozen=True)
class Record:
    """What the ConfigMap of a service holds, and what of it is not written yet."""

    uid: str | None = None
    """Of the ConfigMap; None where there is none of ours."""
    version: str | None = None
    """The resourceVersion that it was read or written at: what is late must not undo a newer leader's."""
    is_foreign: bool = False
    """Whether somebody else's object has the name. It is left alone."""
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

    def render(self, service: Obj) -> Obj:
        """Return the ConfigMap to write."""
        head = render_child(service, CONFIG_MAP, record_name(service["metadata"]["name"]))
        prior = {PRIOR: self.prior} if self.prior else {}
        return {**head, "data": {**prior, KEY: render_changes(self.changes)}}


def read_record(found: Obj | None, service: Obj) -> Record:
    """Return what a service's ConfigMap holds. What is damaged is left out, and told.

    What a former service of the name has left is none: garbage collection is to take it.
    """
    if found is None or is_of_former(found, service):
        return Record()
    if not is_owned(found, service["metadata"]["uid"]):
        return Record(is_foreign=True)
    data: dict[str, Any] = found.get("data") or {}
    prior, changes = data.get(PRIOR, ""), tuple(read_changes(data.get(KEY, "")))
    memory, trouble = None, ""
    try:
        memory = read_prior(parse_prior(prior), None, None) if prior else None
    except PriorError as error:
        trouble = str(error)
    uid, version = (found["metadata"][field] for field in ("uid", "resourceVersion"))
    return Record(uid, version, prior=prior, memory=memory, trouble=trouble, changes=changes)
