"""How much a replica has to do, as it reports it to the gateways that choose a replica."""

from typing import NamedTuple

from millrace_runtime.api.replica_state import ReplicaState


class Load(NamedTuple):
    """The replica's sequences and memory."""

    num_waiting: int
    """Sequences that the engine does not compute yet."""
    num_running: int
    max_sequences: int
    """The most sequences that the engine computes at the same time; 0 while there is no engine."""
    kv_usage: float
    """The share of the KV blocks in use, 0 to 1."""

    def encode(self) -> bytes:
        """Return the value of HEADER_LOAD."""
        return b"%d %d %d %.3f" % self


def read_load(replica: ReplicaState) -> Load:
    """Return the present load."""
    metrics, ready = replica.metrics, replica.engine.ready
    return Load(
        metrics.num_waiting, metrics.num_running, ready.max_sequences if ready else 0, metrics.kv_usage
    )
