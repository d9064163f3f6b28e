import pytest

from millrace_runtime.replica.cpu_limit import ENV_CPU_LIMIT
from millrace_runtime.replica.text_limits import plan_text_limits

GIB = 1 << 30


@pytest.mark.parametrize(
    ("usable", "memory"), [(0, GIB), (2 * GIB, GIB), (8 * GIB, 2 * GIB), (64 * GIB, 4 * GIB)]
)
def test_memory_is_a_quarter_of_what_the_replica_may_use_within_bounds(usable: int, memory: int) -> None:
    assert plan_text_limits({}, usable).memory_bytes == memory


def test_threads_are_no_more_than_the_replicas_cpus() -> None:
    assert plan_text_limits({ENV_CPU_LIMIT: "0.5"}, GIB).num_threads == 1
    assert 1 <= plan_text_limits({}, GIB).num_threads <= 4
