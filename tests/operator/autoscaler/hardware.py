"""The hardware of simulated replicas."""

from millrace_operator.autoscaler.simulate.hardware import Hardware

SLOW = Hardware(
    overhead_seconds=0.02,
    weights_seconds=0.0,
    token_seconds=0.002,
    context_seconds=2e-6,
    max_sequences=16,
    max_batched_tokens=256,
    kv_tokens=4096,
    cold_start_seconds=6.0,
)
"""Half a core with the shipped model."""
