"""What each replica computes with and how much it holds, as Prometheus has it. Pure.

Nothing here decides about counts. The question is one of its own, because it is about services in every mode.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from pydantic import ValidationError

from millrace_operator.api.model_types import ReplicaStatus
from millrace_operator.autoscaler.signals.queries import Question, Scope
from millrace_operator.autoscaler.signals.reading import Sample
from millrace_runtime import contract

PLACEMENT: Final = ("device", "device_name", "dtype", "weights", "tensor_parallel")
"""Labels of `contract.METRIC_REPLICA`."""
NUMBERS: Final = {
    "kv_cache_tokens": contract.METRIC_KV_TOKENS,
    "max_model_length": contract.METRIC_MAX_MODEL_LENGTH,
    "max_sequences": contract.METRIC_MAX_SEQUENCES,
}
Replicas = Mapping[str, ReplicaStatus]
"""What is known of a service's replicas, by pod."""


def build_question(scope: Scope) -> Question:
    """Return what to ask. These series stay as they are, so no window is needed."""
    labels = ", ".join(("namespace", "pod", *PLACEMENT))
    numbers = {name: f"max by (namespace, pod) ({scope.select(metric)})" for name, metric in NUMBERS.items()}
    return Question({"placement": f"max by ({labels}) ({scope.select(contract.METRIC_REPLICA)})", **numbers})


def read_replicas(series: Mapping[str, Iterable[Sample]]) -> dict[str, ReplicaStatus]:
    """Return what the signals of one service say. A pod that lacks one, or says nonsense, is left out."""
    columns = {name: {one.pod: one.value for one in series.get(name, ())} for name in NUMBERS}
    found = {}
    for sample in sorted(series.get("placement", ()), key=lambda one: sorted(one.labels.items())):
        numbers = {name: column.get(sample.pod) for name, column in columns.items()}
        placement = {name: sample.labels.get(name) for name in PLACEMENT}
        try:
            found[sample.pod] = ReplicaStatus.model_validate({**placement, **numbers})
        except ValidationError:  # of another version, or of somebody who writes such metrics himself
            continue
    return found
