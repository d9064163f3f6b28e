"""Each replica's hardware and limits, as Prometheus has them. Pure.

They decide nothing about counts. The query is separate, because it covers services in every mode.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from pydantic import ValidationError

from millrace_operator.api.model_types import ReplicaStatus
from millrace_operator.autoscaler.signals.answers import Sample
from millrace_operator.autoscaler.signals.queries import Question, Scope
from millrace_runtime import contract

PLACEMENT: Final = ("device", "device_name", "dtype", "weights", "tensor_parallel", "kv_cache")
"""Labels of `contract.METRIC_REPLICA`."""
NUMBERS: Final = {
    "kv_cache_tokens": contract.METRIC_KV_TOKENS,
    "max_model_length": contract.METRIC_MAX_MODEL_LENGTH,
    "max_sequences": contract.METRIC_MAX_SEQUENCES,
}
Replicas = Mapping[str, ReplicaStatus]
"""A service's replicas by pod."""


def build_question(scope: Scope) -> Question:
    """Return the query. These series do not change, so it needs no window."""
    labels = ", ".join(("namespace", "pod", *PLACEMENT))
    numbers = {name: f"max by (namespace, pod) ({scope.select(metric)})" for name, metric in NUMBERS.items()}
    return Question({"placement": f"max by ({labels}) ({scope.select(contract.METRIC_REPLICA)})", **numbers})


def read_replicas(series: Mapping[str, Iterable[Sample]]) -> dict[str, ReplicaStatus]:
    """Return the replicas in one service's signals, without pods whose values are missing or bad."""
    columns = {name: {one.pod: one.value for one in series.get(name, ())} for name in NUMBERS}
    found = {}
    for sample in sorted(series.get("placement", ()), key=lambda one: sorted(one.labels.items())):
        numbers = {name: column.get(sample.pod) for name, column in columns.items()}
        placement = {name: sample.labels[name] for name in PLACEMENT if sample.labels.get(name)}
        try:
            found[sample.pod] = ReplicaStatus.model_validate({**placement, **numbers})
        except ValidationError:  # another version, or a tenant's own metric of this name
            continue
    return found
