"""A replica's hardware and limits, and the series that it exports about them."""

from millrace_operator.api.model_types import ReplicaStatus
from millrace_operator.autoscaler.signals.answers import Sample

H100 = ReplicaStatus(
    device="cuda",
    device_name="NVIDIA H100 80GB HBM3",
    dtype="bfloat16",
    weights="FromCheckpoint",
    tensor_parallel=2,
    kv_cache_tokens=500_000,
    max_model_length=8192,
    max_sequences=256,
)
LABELS = {
    "pod": "a",
    "device": "cuda",
    "device_name": "NVIDIA H100 80GB HBM3",
    "dtype": "bfloat16",
    "weights": "FromCheckpoint",
    "tensor_parallel": "2",
}


def make_series(pod: str = "a", **changes: str | float) -> dict[str, list[Sample]]:
    numbers: dict[str, str | float] = {
        "kv_cache_tokens": 500_000.0,
        "max_model_length": 8192.0,
        "max_sequences": 256.0,
    }
    labels = {**LABELS, "pod": pod, **{name: str(text) for name, text in changes.items() if name in LABELS}}
    values = {name: float(changes.get(name, value)) for name, value in numbers.items()}
    return {
        "placement": [Sample(labels, 1.0)],
        **{name: [Sample({"pod": pod}, value)] for name, value in values.items()},
    }
