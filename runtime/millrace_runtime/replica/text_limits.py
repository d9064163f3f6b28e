"""The text worker's share of the replica's CPUs."""

from collections.abc import Mapping

from millrace_runtime.replica.cpu_limit import read_num_cpus

_MAX_THREADS = 4


def count_text_threads(environment: Mapping[str, str]) -> int:
    """Return how many threads tokenise, in a replica with these environment variables."""
    return min(_MAX_THREADS, read_num_cpus(environment))
