"""Which revision a model's source has: told by a Job's pod, and from then on the same for all replicas. Pure.

The operator calls no address that a tenant chose and reads no Secret. So a Job in the service's namespace
asks.
"""

import json
from dataclasses import replace
from typing import Any

from millrace_operator.cluster.kinds import Obj
from millrace_operator.reconcile.asking import list_askers
from millrace_operator.reconcile.found_model import FoundModel
from millrace_operator.reconcile.jobs import find_job, list_pods
from millrace_operator.reconcile.pod_status import find_fetcher, find_state
from millrace_operator.reconcile.render.metadata import fill_name, revision_name, told_name
from millrace_operator.reconcile.snapshot import Snapshot
from millrace_operator.resources.model_uri import is_fetched
from millrace_runtime import contract


def find_model(snapshot: Snapshot, uri: str, revision: str) -> FoundModel | None:
    """Return what the Job of a service's revision has found; None while it has not.

    A Job that fetches it already counts more: it fetches what was found then, and the branch may have moved.
    """
    if not is_fetched(uri):
        return _find_at_hand(snapshot, revision)
    filling = _read_kept(find_job(snapshot, fill_name(snapshot.service, revision)))
    if filling is not None:
        return filling
    told = (find_told(snapshot, asker.name) for asker in list_askers(snapshot, revision))
    return next((found for found in told if found is not None), None)


def find_told(snapshot: Snapshot, job: str) -> FoundModel | None:
    """Return what a Job that asks a source has found; None while it has not."""
    told = (_read_told(pod) for pod in list_pods(snapshot, job))
    return next((found for found in told if found is not None and found.revision is not None), None)


def find_kept(snapshot: Snapshot, revision: str) -> FoundModel | None:
    """Return what a Job keeps of a look at a claim; None where there is none, or it can't be read."""
    return read_look(find_job(snapshot, told_name(snapshot.service, revision)))


def _find_at_hand(snapshot: Snapshot, revision: str) -> FoundModel | None:
    """Return what a look at a claim has found; None while it has not.

    What a Job keeps counts more: the pod that told it may be gone.
    """
    pods = list_pods(snapshot, revision_name(snapshot.service, revision))
    told = (_strip_revision(_read_told(pod)) for pod in pods)
    return find_kept(snapshot, revision) or next((found for found in told if found is not None), None)


def _strip_revision(found: FoundModel | None) -> FoundModel | None:
    """Return the facts of a model in a claim; None without any. No revision of it is believed."""
    return replace(found, revision=None) if found is not None and found.facts is not None else None


def read_look(job: Obj) -> FoundModel | None:
    """Return what a Job keeps of a look at a claim; None where it has no facts, or they can't be read."""
    return _strip_revision(_read_kept(job))


def _read_kept(job: Obj) -> FoundModel | None:
    """Return what a Job keeps in its annotation; None where it keeps nothing, or it can't be read."""
    annotations: dict[str, str] = job.get("metadata", {}).get("annotations", {})
    return _read_json(annotations.get(contract.ANNOTATION_FOUND, ""))


def _read_told(pod: Obj) -> FoundModel | None:
    ended: dict[str, Any] = find_state(find_fetcher(pod.get("status", {})), "terminated") or {}
    return _read_json(ended.get("message", "")) if ended.get("exitCode") == 0 else None


def _read_json(text: str) -> FoundModel | None:
    try:
        return FoundModel.read(json.loads(text))
    except (ValueError, RecursionError):
        return None
