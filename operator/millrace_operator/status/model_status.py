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
"""Of `status.model`."""


def describe_model(inputs: StatusInputs, truths: list[Truth]) -> dict[str, Any]:
    """Return `status.model`. What is known of a replica is of the revision that serves, and goes with it."""
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
    """Return the model that the revision to run has, which need not be the one in the spec."""
    recorded = inputs.targets.target.inputs.get("model")
    if inputs.runs_another and recorded is not None:
        name, found = recorded.get("servedName", inputs.name), inputs.targets.target.model
        told = {"servedName": name, "uri": recorded["uri"], **_describe_found(found)}
        return {**told, "cache": _describe_cache(inputs.targets.target)}
    name = served_name(inputs.snapshot.service, inputs.spec)
    told = {"servedName": name, "uri": inputs.spec.model.uri, **_describe_found(inputs.targets.known.model)}
    told["cache"] = None if inputs.pending else _describe_cache(inputs.targets.target)
    facts = inputs.targets.known.model and inputs.targets.known.model.facts
    return {**told, **_describe_fit(inputs, facts)} if facts else told


def _describe_fit(inputs: StatusInputs, facts: ModelFacts) -> dict[str, Any]:
    """Return whether the model fits. What nodes tell of a revision that was made is told once.

    It changes nothing any more, and a status that followed each node would be written with each that goes.
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
    """Return the fields to write, where `old` are there of the same revision; empty while nothing is known.

    Replicas may differ, as those on two kinds of node. Then one of them is told, and always the same while a
    replica like it is seen: first the one with the smallest KV cache.
    """
    before = {name: old[name] for name in FIELDS if name in old}
    found = sorted(seen, key=lambda one: (one.kv_cache_tokens, _describe(one)))
    told = [{"device": one.device_name, "serving": _describe(one)} for one in found]
    return before if not told or before in told else told[0]


def _describe(replica: ReplicaStatus) -> str:
    return (
        f"{replica.device}, {replica.dtype}, weights {replica.weights}, tensor parallel "
        f"{replica.tensor_parallel}; {replica.kv_cache_tokens} KV tokens, {replica.max_sequences} sequences "
        f"of up to {replica.max_model_length} tokens"
    )
