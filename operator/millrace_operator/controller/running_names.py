"""Which model names the Ready replicas of each service answer to."""

from collections import Counter
from typing import NamedTuple

from millrace_kubernetes.model_names import ModelNames, read_running_name
from millrace_operator.api.conditions import find_condition
from millrace_operator.controller.owners import is_replica
from millrace_operator.kube.kinds import Obj, Role, ServiceKey, kind_of
from millrace_runtime import contract


class Running(NamedTuple):
    """The model name that a replica answers to, and its service."""

    owner: ServiceKey
    name: str


class RunningNames:
    """Counts the replicas by name, so that a name is a claim while one of them has it."""

    def __init__(self, names: ModelNames[ServiceKey]) -> None:
        self._names = names
        self._counts: dict[ServiceKey, Counter[str]] = {}

    def count(self, before: Running | None, now: Running | None) -> None:
        """Know what a pod answers to now. Where that is as before, nobody looks at the name again."""
        if before == now:
            return
        for running, change in ((now, 1), (before, -1)):
            if running is not None:
                self._change(running, change)

    def _change(self, running: Running, change: int) -> None:
        counts = self._counts.pop(running.owner, Counter())
        counts[running.name] += change
        left = +counts  # what is zero goes
        if left:
            self._counts[running.owner] = left
        self._names.put_running(running.owner, frozenset(left))


def find_running(obj: Obj, owner: ServiceKey | None) -> Running | None:
    """Return what a replica answers to, if it is Ready and stays."""
    metadata = obj["metadata"]
    is_there = kind_of(obj).role is Role.POD and "deletionTimestamp" not in metadata
    if owner is None or not is_there or not is_replica(metadata, metadata.get("labels", {})):
        return None
    ready = find_condition(obj.get("status", {}), "Ready") or {}
    if ready.get("status") != "True":
        return None
    name = read_running_name(obj, contract.CONTAINER_REPLICA, contract.FLAG_SERVED_NAME)
    return None if name is None else Running(owner, name)
