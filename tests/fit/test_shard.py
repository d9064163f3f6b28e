"""Which part of a model each of several workers holds."""

import pytest

from millrace_fit.errors import ArchitectureError
from millrace_fit.shard import Cut, Shard


def cuts(count: int, num_heads: int, num_kv_heads: int) -> list[tuple[int, int, int, int]]:
    parts = [Shard(index, count).cut_heads(num_heads, num_kv_heads) for index in range(count)]
    assert all(part.query.size % part.kv.size == 0 for part in parts)
    return [(p.query.begin, p.query.end, p.kv.begin, p.kv.end) for p in parts]


def test_kv_heads_are_shared_with_their_query_heads_unevenly_where_they_must_be() -> None:
    assert cuts(1, 9, 3) == [(0, 9, 0, 3)]
    assert cuts(2, 9, 3) == [(0, 3, 0, 1), (3, 9, 1, 3)]
    assert cuts(3, 9, 3) == [(0, 3, 0, 1), (3, 6, 1, 2), (6, 9, 2, 3)]
    assert cuts(4, 8, 8) == [(0, 2, 0, 2), (2, 4, 2, 4), (4, 6, 4, 6), (6, 8, 6, 8)]


def test_a_kv_head_is_held_by_several_workers_where_they_are_more() -> None:
    assert cuts(4, 8, 2) == [(0, 2, 0, 1), (2, 4, 0, 1), (4, 6, 1, 2), (6, 8, 1, 2)]
    assert cuts(2, 6, 1) == [(0, 3, 0, 1), (3, 6, 0, 1)]


@pytest.mark.parametrize(("count", "num_heads", "num_kv_heads"), [(4, 9, 3), (6, 9, 3), (3, 8, 2)])
def test_heads_that_workers_cannot_share_are_refused(count: int, num_heads: int, num_kv_heads: int) -> None:
    with pytest.raises(ArchitectureError, match=f"can't be shared by {count} workers: take 1, 2"):
        Shard(0, count).cut_heads(num_heads, num_kv_heads)


def test_rows_are_shared_in_whole_units() -> None:
    parts = [Shard(index, 3).cut(200, 32) for index in range(3)]
    assert parts == [Cut(200, 0, 64), Cut(200, 64, 128), Cut(200, 128, 200)]
    with pytest.raises(ArchitectureError, match="40 rows in units of 32 can't be shared by 3 workers"):
        Shard(0, 3).cut(40, 32)
