"""What a replica counts at a moment, as /metrics shows it, and whether that is consistent. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from millrace_runtime import contract
from millrace_runtime.api.metrics import METRIC_COMPILATIONS, METRIC_PREEMPTIONS


@dataclass(frozen=True, slots=True)
class Counts:
    """Sequences, the KV cache and what else is counted."""

    received: float
    rejected: float
    finished: float
    running: float
    waiting: float
    kv_usage: float
    compiled: float
    preempted: float
    decode_steps: float
    """Steps without a prompt."""
    decode_seconds: float
    startup_seconds: dict[str, float]
    """By phase."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs, waits or holds a block."""
        return self.running == self.waiting == self.kv_usage == 0

    def find_fault(self) -> str | None:
        """Return what can't be, or None."""
        numbers = (self.received, self.rejected, self.finished, self.running, self.waiting, self.kv_usage)
        if min(numbers) < 0:
            return "a count is negative"
        if self.kv_usage > 1:
            return "more KV blocks are in use than there are"
        if self.received != self.rejected + self.finished + self.running + self.waiting:
            return "received sequences are not those rejected, finished, running and waiting"
        return None


def read_counts(text: str) -> Counts:
    """Return the counts in the text of /metrics."""
    families = text_string_to_metric_families(text)
    samples = [sample for family in families for sample in family.samples]
    sums: dict[str, float] = {}
    for sample in samples:
        name = sample.name + ("_decode" if sample.labels.get("kind") == "decode" else "")
        sums[name] = sums.get(name, 0.0) + sample.value
    return Counts(
        received=sums[f"{contract.METRIC_RECEIVED}_total"],
        rejected=sums.get(f"{contract.METRIC_REJECTED}_total", 0.0),
        finished=sums[f"{contract.METRIC_REQUEST_SUCCESS}_total"],
        running=sums[contract.METRIC_RUNNING],
        waiting=sums[contract.METRIC_WAITING],
        kv_usage=sums[contract.METRIC_KV_USAGE],
        compiled=sums[f"{METRIC_COMPILATIONS}_total"],
        preempted=sums[f"{METRIC_PREEMPTIONS}_total"],
        decode_steps=sums[f"{contract.METRIC_STEP_SECONDS}_count_decode"],
        decode_seconds=sums[f"{contract.METRIC_STEP_SECONDS}_sum_decode"],
        startup_seconds={
            sample.labels["phase"]: sample.value
            for sample in samples
            if sample.name == contract.METRIC_STARTUP
        },
    )


def find_faults(seen: Sequence[Counts]) -> list[str]:
    """Return each fault that was seen at some moment, once."""
    return sorted({fault for counts in seen if (fault := counts.find_fault()) is not None})
