"""`status.model`: the model of the revision to run, whether it fits, and what replicas compute with. Pure."""

from collections.abc import Iterable
from typing import Any

from millrace_fit.facts import ModelFacts
from millrace_fit.verdict import Answer
from millrace_operator.api.conditions import (
    Reason,
    Truth,
)
from millrace_operator.api.model_types import ReplicaStatus
from millrace_operator.model.fit import judge_fit
from millrace_operator.model.found_model import FoundModel
from millrace_operator.render.pod_template import served_name
from millrace_operator.rollout.revision import Revision
from millrace_operator.status.conditions import find_fetched
from millrace_operator.status.inputs import StatusInputs

Json = dict[str, Any]
FIELDS = ("device", "serving")
"""Fields of `status.model`."""


def describe_model(inputs: StatusInputs, truths: list[Truth]) -> dict[str, Any]:
    """Return `status.model`. The facts of a replica belong to the serving revision, and go with it."""
    old = inputs.old
    revision = inputs.current_revision or inputs.revision
    is_same = revision == (old.get("currentRevision") or old.get("updateRevision"))
    before = old.get("model", {}) if is_same else {}
    names = [pod.name for pod in inputs.observed.pods_of(revision)]
    seen = inputs.snapshot.model.replicas
    replica = choose_replica(before, (seen[name] for name in names if name in seen))
    fetched = find_fetched(inputs) if _is_fetching(truths) else None
    model = {
        **_describe_source(inputs),
        "fetched": fetched and fetched.summarize(),
        **replica,
    }
    return {field: value for field, value in model.items() if value is not None}


def _is_fetching(truths: list[Truth]) -> bool:
    """Whether ModelReady says that the model is being fetched."""
    return any(truth.type == "ModelReady" and truth.reason is Reason.FETCHING for truth in truths)


def _describe_source(inputs: StatusInputs) -> dict[str, Any]:
    """Return the model of the revision to run, which may differ from the one in the spec."""
    recorded = inputs.targets.target.inputs.get("model")
    if inputs.runs_another and recorded is not None:
        name, found = recorded.get("servedName", inputs.name), inputs.targets.target.model
        fields = {"servedName": name, "uri": recorded["uri"], **_describe_found(found)}
        return {**fields, "cache": _describe_cache(inputs.targets.target)}
    name = served_name(inputs.snapshot.service, inputs.spec)
    fields = {"servedName": name, "uri": inputs.spec.model.uri, **_describe_found(inputs.targets.known.model)}
    fields["cache"] = None if inputs.pending else _describe_cache(inputs.targets.target)
    facts = inputs.targets.known.model and inputs.targets.known.model.facts
    return {**fields, **_describe_fit(inputs, facts)} if facts else fields


def _describe_fit(inputs: StatusInputs, facts: ModelFacts) -> dict[str, Any]:
    """Return whether the model fits. The verdict by the nodes of a finished revision stays as it is.

    A new verdict would change nothing, and the status would be written whenever a node goes.
    """
    fit, before = judge_fit(inputs.spec, facts), inputs.old.get("model", {})
    if fit.verdict.answer is not Answer.UNKNOWN:
        return fit.render()
    if inputs.is_judged and before.get("fit", Answer.UNKNOWN) != Answer.UNKNOWN:
        return fit.render() | {field: before[field] for field in ("fit", "fitMessage") if field in before}
    return judge_fit(inputs.spec, facts, inputs.snapshot.nodes.gpus.values()).render()


def _describe_found(found: FoundModel | None) -> dict[str, Any]:
    return {} if found is None else {"resolvedRevision": found.revision, "sizeBytes": found.num_bytes}


def _describe_cache(revision: Revision) -> dict[str, Any] | None:
    return None if revision.cached is None else revision.cached.render()


def choose_replica(old: Json, seen: Iterable[ReplicaStatus]) -> Json:
    """Return the fields to write. `old` has those of the same revision; empty while nothing is known.

    Replicas may differ, as on two kinds of node. Then status shows one of them, and stays with it while a
    replica like it exists: at first the one with the smallest KV cache.
    """
    before = {name: old[name] for name in FIELDS if name in old}
    found = sorted(seen, key=lambda one: (one.kv_cache_tokens, _describe(one)))
    fields = [{"device": one.device_name, "serving": _describe(one)} for one in found]
    return before if not fields or before in fields else fields[0]


def _describe(replica: ReplicaStatus) -> str:
    form = "" if replica.kv_cache == "Model" else f"KV cache {replica.kv_cache}, "
    return (
        f"{replica.device}, {replica.dtype}, weights {replica.weights}, {form}tensor parallel "
        f"{replica.tensor_parallel}; {replica.kv_cache_tokens} KV tokens, {replica.max_sequences} sequences "
        f"of up to {replica.max_model_length} tokens"
    )
