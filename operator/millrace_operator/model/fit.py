"""Whether a model fits the devices that its service asks for, as far as that is known before a pod. Pure.

A refusal needs certainty: no replica can read the model, or its weights are larger than the memory. The rest
of a replica's memory is an estimate, and partly a guess. If that is too much, status warns.

A service that names no GPU may get those of any node. The labels of the nodes refuse a model only if it fits
on none of their GPUs. A node whose labels say nothing of its GPUs refuses nothing, and neither does a cluster
without nodes, because an autoscaler may add one of any size. Only nodeSelector and the amounts asked for
leave a node out. Taints, affinities and the pods that are there would leave out more; too many candidates do
no harm.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from millrace_fit.accelerators import LABEL_MEMORY, LABEL_PRODUCT, Accelerator, find_accelerator, read_labels
from millrace_fit.facts import ModelFacts
from millrace_fit.files.dtypes import ITEM_BYTES
from millrace_fit.settings import Settings, Wording
from millrace_fit.verdict import Answer, Verdict, judge
from millrace_operator.api.conditions import LOWER_OR_ADD, NO_NODE_HAS, Reason
from millrace_operator.api.quantities import count_gpus, has_gpu, list_gpus, parse_quantity
from millrace_operator.api.types import Spec
from millrace_operator.kube.node import GPUS, GpuNode
from millrace_operator.status.causes import Cause

MOST_NAMES = 4
"""Names of kinds of GPUs in a message, at most."""
MIG = "nvidia.com/mig-"
"""The prefix of resources that are parts of a GPU. The profile follows it."""
LARGEST = Accelerator("any GPU", 1 << 60)
"""A model that does not run on it runs nowhere."""
ANOTHER_GPU = (
    "no present node has a GPU for it: add one, or name such a GPU under "
    "pod.nodeSelector, by nvidia.com/gpu.product, also where an autoscaler is to add the node"
)
"""What lifts a refusal by the nodes."""
MANIFEST = Wording(
    weights="spec.model.quantization.weights: {0}",
    kv_cache="spec.model.quantization.kvCache: {0}",
    max_model_length="spec.engine.maxModelLength: {0}",
    max_batched_tokens="spec.engine.maxBatchedTokens: {0}",
    gpus="on {0} of these GPUs (nvidia.com/gpu: {0} under spec.resources.limits)",
    memory="spec.resources.limits.memory: {0}Gi",
    workers="nvidia.com/gpu: {0} under spec.resources.limits",
)


class Candidate(NamedTuple):
    """The GPUs of a node by its labels. Both fields are empty without labels."""

    product: str
    memory: str

    @property
    def accelerator(self) -> Accelerator | None:
        """One of these GPUs; None if it is not known."""
        return read_labels({LABEL_PRODUCT: self.product, LABEL_MEMORY: self.memory})


@dataclass(frozen=True)
class Fit:
    """The verdict on a model before it runs."""

    verdict: Verdict
    facts: ModelFacts
    is_by_nodes: bool = False
    """Whether the verdict comes from labels of nodes, and so may change with them."""

    @property
    def refusal(self) -> Cause | None:
        """Why no pod is made; None if one may start."""
        if not is_refused(self.verdict):
            return None
        is_unsupported = self.verdict.answer is Answer.UNSUPPORTED
        words = f"the model {'cannot be served: ' if is_unsupported else ''}{self.verdict}"
        if self.is_by_nodes:
            return Cause(Reason.DOES_NOT_FIT, f"{words}; {ANOTHER_GPU}")
        if not is_unsupported:
            return Cause(Reason.DOES_NOT_FIT, words)
        return Cause(Reason.MODEL_INVALID if self.facts.fault else Reason.SETTINGS_INVALID, words)

    def render(self) -> dict[str, Any]:
        """Return the verdict as a part of `status.model`, without figures of weights that nobody has read."""
        fields: dict[str, Any] = {
            "architecture": self.facts.architecture,
            "fit": self.verdict.answer.value,
            "fitMessage": str(self.verdict),
        }
        if self.facts.shape is not None:
            fields["contextLength"] = self.facts.shape.max_length
        return {**fields, **self._describe_weights()} if self.facts.num_parameters else fields

    def _describe_weights(self) -> dict[str, Any]:
        facts = self.facts
        fields: dict[str, Any] = {"parameters": facts.num_parameters}
        if facts.shape is None:
            return fields
        if facts.served_type in ITEM_BYTES:
            fields["dtype"] = facts.served_type
        if facts.kinds:
            fields["quantization"] = facts.kinds
        return fields


def judge_fit(spec: Spec, facts: ModelFacts, nodes: Iterable[GpuNode] = ()) -> Fit:
    """Return whether the model fits the device that the spec names, or else the GPUs of these nodes."""
    is_on_gpus = has_gpu(spec.resources.limits)
    tensor = spec.parallelism.tensor or max(1, count_gpus(spec.resources.limits))
    settings = Settings(
        device="cuda" if is_on_gpus else "cpu",
        weights=spec.model.quantization.weights.value,
        kv_cache=spec.model.quantization.kv_cache.value,
        tensor_parallel=tensor,
        max_model_length=spec.engine.max_model_length,
        max_sequences=spec.engine.max_sequences,
        max_batched_tokens=spec.engine.max_batched_tokens,
    )
    device = find_device(spec, is_on_gpus=is_on_gpus)
    wording = _choose_wording(spec)
    verdict = judge(facts, settings, device, wording)
    if verdict.answer is not Answer.UNKNOWN or not _has_whole_gpus(spec):
        return Fit(verdict, facts)
    found = judge_on_nodes(facts, settings, find_candidates(spec, nodes), wording)
    if found is None:
        return Fit(verdict, facts)
    is_of_settings = judge(facts, settings, LARGEST).answer is Answer.UNSUPPORTED
    return Fit(found, facts, is_by_nodes=not is_of_settings)


def _choose_wording(spec: Spec) -> Wording:
    """Return the manifest's field names. If it names the workers, there are as many as GPUs."""
    if spec.parallelism.tensor is None:
        return MANIFEST
    tensor = "spec.parallelism.tensor: {0}"
    workers = f"{MANIFEST.workers}, and {tensor}" if has_gpu(spec.resources.limits) else tensor
    return replace(MANIFEST, gpus=f"{MANIFEST.gpus[:-1]} and {tensor})", workers=workers)


def _has_whole_gpus(spec: Spec) -> bool:
    """Whether labels of nodes show what a pod gets: they show the memory of whole GPUs, not of parts."""
    is_part = any(name.startswith(MIG) for name in spec.resources.limits)
    return has_gpu(spec.resources.limits) and not is_part and not spec.pod.resource_claims


def find_device(spec: Spec, *, is_on_gpus: bool) -> Accelerator | None:
    """Return the device that the spec names: a MIG profile, a node's label, or a pod's memory on CPUs."""
    if spec.pod.resource_claims:
        return None  # a claim's device is unknown in advance
    if is_on_gpus:
        profiles = [name.removeprefix(MIG) for name in spec.resources.limits if name.startswith(MIG)]
        return find_accelerator(profiles[0]) if profiles else read_labels(spec.pod.node_selector)
    try:
        limit = parse_quantity(str(spec.resources.limits["memory"]))
    except (KeyError, ValueError):
        return None
    return Accelerator("a pod on CPUs", int(limit), device="cpu")


def is_refused(verdict: Verdict) -> bool:
    """Whether a replica certainly cannot serve. A guessed part of its memory refuses nothing."""
    plan = verdict.plan
    is_over = verdict.answer is Answer.DOES_NOT_FIT and plan is not None and plan.weights > plan.total
    return is_over or verdict.answer is Answer.UNSUPPORTED


class Judged(NamedTuple):
    """The verdict on a model for one kind of GPU."""

    candidate: Candidate
    accelerator: Accelerator
    verdict: Verdict


def judge_on_nodes(
    facts: ModelFacts, settings: Settings, candidates: Collection[Candidate], wording: Wording
) -> Verdict | None:
    """Return the verdict with the names of the nodes' GPUs; None if these are not known."""
    known = [(one, gpu) for one in candidates if (gpu := one.accelerator)]
    if not known or len(known) < len(candidates):
        return None
    judged = [Judged(one, gpu, judge(facts, settings, gpu, wording)) for one, gpu in known]
    judged.sort(key=lambda one: (one.accelerator.memory_bytes, one.candidate))
    good = [one for one in judged if one.verdict.starts]
    bad = [one for one in judged if not one.verdict.starts]
    if good and bad:
        return _choose(good, bad)
    shown = judged[0]  # the smallest
    if bad:
        shown = next((one for one in reversed(bad) if not is_refused(one.verdict)), bad[-1])
    message = f"{shown.verdict.message} (by the labels of nodes with {_join(judged, 'and')})"
    return replace(shown.verdict, message=message)


def _choose(good: Sequence[Judged], bad: Sequence[Judged]) -> Verdict:
    """Return the verdict that the fit depends on the node, with the nodeSelector that decides it."""
    chosen, others = good[0].candidate, {one.candidate.product for one in bad}
    label, text = LABEL_PRODUCT, chosen.product
    if not text or text in others:
        label, text = LABEL_MEMORY, f'"{chosen.memory}"'
    return Verdict(
        Answer.TIGHT,
        f"fits on {_join(good, 'and')} and not on {_join(bad, 'or')}, and a pod may get any of them",
        f"write {label}: {text} under pod.nodeSelector",
    )


def _join(judged: Sequence[Judged], word: str) -> str:
    """Return the names of the GPUs, each once."""
    names = list(dict.fromkeys(one.candidate.product or one.accelerator.name for one in judged))
    names = names[:MOST_NAMES] + (["others"] if len(names) > MOST_NAMES else [])
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {word} {names[-1]}"


def find_candidates(spec: Spec, nodes: Iterable[GpuNode]) -> frozenset[Candidate]:
    """Return the GPUs of all nodes on which the service's pod could run."""
    found = (read_candidate(spec, node) for node in nodes)
    return frozenset(one for one in found if one is not None)


def explain_shortage(spec: Spec, nodes: Iterable[GpuNode]) -> str | None:
    """Return the message that no node has as many GPUs as a pod asks for, free or not; else None.

    It needs the offers of all nodes with GPUs, and at least one such node: an autoscaler may add the first
    one, of any size. It may add a larger one, too, so this refuses nothing.
    """
    offers = [node.offers for node in nodes]
    if not offers or not all(offers):
        return None
    for name, amount in list_gpus(spec.resources.limits).items():
        most = max(_read_amount(one, name) for one in offers)
        if name.startswith(GPUS) and most < amount:
            largest = f"the largest has {most}" if most else "none has any"
            return f"{NO_NODE_HAS} {amount} {name}; {largest}: {LOWER_OR_ADD}"
    return None


def read_candidate(spec: Spec, node: GpuNode | None) -> Candidate | None:
    """Return the GPUs of a node; None if the service's pod could not run there."""
    if node is None or not spec.pod.node_selector.items() <= node.labels.items():
        return None
    asked = list_gpus(spec.resources.limits)
    is_short = any(_read_amount(node.offers, name) < amount for name, amount in asked.items())
    # A node that offers nothing now counts: a device plugin that restarts must not lift a refusal.
    if not asked or (node.offers and is_short):
        return None
    return Candidate(node.labels.get(LABEL_PRODUCT, ""), node.labels.get(LABEL_MEMORY, ""))


def _read_amount(offers: Mapping[str, str], resource: str) -> int:
    """Return how many of a resource a node offers: a whole number, of GPUs or of parts of them."""
    amount = offers.get(resource, "0")
    return int(amount) if amount.isascii() and amount.isdecimal() else 0
