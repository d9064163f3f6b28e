import pytest

from millrace_fit.kv_cache import plan_text_memory
from millrace_runtime.execution.host import ENV_CPU_LIMIT, count_text_threads

GIB = 1 << 30


@pytest.mark.parametrize(
    ("usable", "memory"),
    [(0, 0), (GIB, GIB // 4), (3 * GIB, GIB // 2), (8 * GIB, GIB // 2), (16 * GIB, GIB), (99 * GIB, 4 * GIB)],
)
def test_memory_is_enough_for_text_and_a_small_share_of_the_replicas(usable: int, memory: int) -> None:
    assert plan_text_memory(usable) == memory


def test_threads_are_no_more_than_the_replicas_cpus() -> None:
    assert count_text_threads({ENV_CPU_LIMIT: "0.5"}) == 1
    assert 1 <= count_text_threads({}) <= 4
