"""Whether a model fits the devices that its service asks for, as far as that is known before a pod. Pure.

Refused is what can't serve for certain: a model that no replica reads, and weights that are larger than the
memory. The rest of a replica's memory is reckoned, and partly guessed: where that is too much, status warns.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from millrace_fit.accelerators import Accelerator, find_accelerator, read_labels
from millrace_fit.dtypes import ITEM_BYTES
from millrace_fit.facts import ModelFacts
from millrace_fit.settings import Settings
from millrace_fit.verdict import Answer, Verdict, judge
from millrace_fit.wording import Wording
from millrace_operator.api.accelerators import count_gpus, has_gpu
from millrace_operator.api.conditions import Reason
from millrace_operator.api.quantities import parse_quantity
from millrace_operator.api.types import Spec
from millrace_operator.kube.node import GpuNode
from millrace_operator.model.fit_on_nodes import is_refused, judge_on_nodes
from millrace_operator.model.gpu_candidates import find_candidates
from millrace_operator.status.causes import Cause

MIG = "nvidia.com/mig-"
"""Resources that are parts of a GPU, by their profile."""
LARGEST = Accelerator("any GPU", 1 << 60)
"""What does not run on it runs nowhere."""
ANOTHER_GPU = (
    "no node that is there now has a GPU for it: add one that has, or name such a GPU under "
    "pod.nodeSelector, by nvidia.com/gpu.product, also where an autoscaler is to add the node"
)
"""How a refusal by the nodes is lifted."""

MANIFEST = Wording(
    weights="spec.model.quantization.weights: {0}",
    max_model_length="spec.engine.maxModelLength: {0}",
    max_batched_tokens="spec.engine.maxBatchedTokens: {0}",
    gpus="on {0} of these GPUs (nvidia.com/gpu: {0} under spec.resources.limits)",
    memory="spec.resources.limits.memory: {0}Gi",
    workers="nvidia.com/gpu: {0} under spec.resources.limits",
)


@dataclass(frozen=True)
class Fit:
    """What is told of a model before it runs."""

    verdict: Verdict
    facts: ModelFacts
    is_by_nodes: bool = False
    """Whether nodes' labels told the device, and so may tell another one later."""

    @property
    def refusal(self) -> Cause | None:
        """Why no pod is to be made of it; None where one may start."""
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
        """Return it as a part of `status.model`, without figures of weights that nobody has read."""
        told: dict[str, Any] = {
            "architecture": self.facts.architecture,
            "fit": self.verdict.answer.value,
            "fitMessage": str(self.verdict),
        }
        if self.facts.shape is not None:
            told["contextLength"] = self.facts.shape.max_length
        return {**told, **self._describe_weights()} if self.facts.num_parameters else told

    def _describe_weights(self) -> dict[str, Any]:
        facts = self.facts
        told: dict[str, Any] = {"parameters": facts.num_parameters}
        if facts.shape is None:
            return told
        if facts.served_type in ITEM_BYTES:
            told["dtype"] = facts.served_type
        return told


def judge_fit(spec: Spec, facts: ModelFacts, nodes: Iterable[GpuNode] = ()) -> Fit:
    """Return whether the model fits the device that the spec names, or else the GPUs of these nodes."""
    is_on_gpus = has_gpu(spec.resources.limits)
    tensor = spec.parallelism.tensor or max(1, count_gpus(spec.resources.limits))
    settings = Settings(
        device="cuda" if is_on_gpus else "cpu",
        weights=spec.model.quantization.weights.value,
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
    """Return the manifest's own names. Where it names the workers, they are as many as its GPUs."""
    if spec.parallelism.tensor is None:
        return MANIFEST
    tensor = "spec.parallelism.tensor: {0}"
    workers = f"{MANIFEST.workers}, and {tensor}" if has_gpu(spec.resources.limits) else tensor
    return replace(MANIFEST, gpus=f"{MANIFEST.gpus[:-1]} and {tensor})", workers=workers)


def _has_whole_gpus(spec: Spec) -> bool:
    """Whether nodes' labels tell what a pod gets: they tell the memory of whole GPUs, and not of parts."""
    is_part = any(name.startswith(MIG) for name in spec.resources.limits)
    return has_gpu(spec.resources.limits) and not is_part and not spec.pod.resource_claims


def find_device(spec: Spec, *, is_on_gpus: bool) -> Accelerator | None:
    """Return the device that the spec names: a MIG profile, a node's label, or a pod's memory on CPUs."""
    if spec.pod.resource_claims:
        return None  # what a claim gives, nobody knows before
    if is_on_gpus:
        profiles = [name.removeprefix(MIG) for name in spec.resources.limits if name.startswith(MIG)]
        return find_accelerator(profiles[0]) if profiles else read_labels(spec.pod.node_selector)
    try:
        limit = parse_quantity(str(spec.resources.limits["memory"]))
    except (KeyError, ValueError):
        return None
    return Accelerator("a pod on CPUs", int(limit), device="cpu")
