"""What a Job's pod has told of a model: its source's revision, or what is in a claim. Pure.

The operator calls no address that a tenant chose and reads no Secret. So a Job in the service's namespace
asks. What it told is in the revision's record from then on, so that all replicas get the same.
"""

import json
from dataclasses import replace
from typing import Any

from millrace_operator.api.model_uri import is_fetched
from millrace_operator.kube.kinds import Obj
from millrace_operator.model.found_model import FoundModel
from millrace_operator.observed.jobs import Jobs
from millrace_operator.observed.pod_status import find_fetcher, find_state


def find_told(jobs: Jobs, job: str, uri: str) -> FoundModel | None:
    """Return what the Job of a revision has told; None while it has not.

    Of a model in a claim no revision is believed, and without facts nothing is told.
    """
    pods = jobs.list_pods(job)
    found = [one for one in map(_read_told, pods) if one is not None]
    if is_fetched(uri):
        return next((one for one in found if one.revision is not None), None)
    return next((replace(one, revision=None) for one in found if one.facts is not None), None)


def _read_told(pod: Obj) -> FoundModel | None:
    ended: dict[str, Any] = find_state(find_fetcher(pod.get("status", {})), "terminated") or {}
    if ended.get("exitCode") != 0:
        return None
    try:
        return FoundModel.read(json.loads(ended.get("message", "")))
    except (ValueError, RecursionError):
        return None
