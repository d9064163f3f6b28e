"""How the KV cache's memory is divided among groups."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_fit.errors import NoRoomError
from millrace_fit.kv_budget import (
    BLOCK_SIZE,
    Budget,
    CacheDemand,
    CacheGroup,
    CacheShape,
    count_bytes,
    plan_cache,
)

GROUPS = st.lists(
    st.builds(CacheGroup, st.integers(1, 50), st.none() | st.integers(1, 300)), min_size=1, max_size=3
).map(tuple)
DEMANDS = st.builds(
    CacheDemand, GROUPS, st.integers(1, 20), st.integers(1, 200), st.integers(1, 600), st.booleans()
)


def plan(demand: CacheDemand, num_bytes: int) -> CacheShape:
    return plan_cache(demand, Budget(num_bytes, "a test"))


@given(DEMANDS, st.integers(0, 20_000))
def test_a_cache_fits_holds_its_sequence_and_has_no_block_too_many(
    demand: CacheDemand, num_bytes: int
) -> None:
    try:
        shape = plan(demand, num_bytes)
    except NoRoomError:
        shortest = demand.longest if demand.is_firm else min(demand.longest, BLOCK_SIZE)
        assert demand.find_longest(1, num_bytes) < shortest
        return
    assert shape.num_bytes <= num_bytes
    assert shape.max_model_length == demand.longest or not demand.is_firm
    needed = demand.count_blocks(1, shape.max_model_length)
    most = demand.count_blocks(demand.max_sequences, shape.max_model_length)
    assert 1 <= shape.num_sequences <= demand.max_sequences
    is_filled = count_bytes(demand.groups, most) <= num_bytes
    for low, count, high in zip(needed, shape.num_blocks, most, strict=True):
        assert (high if is_filled else low) <= count
        assert is_filled or count <= high
    if is_filled:  # prefixes have the rest
        assert num_bytes - shape.num_bytes < sum(group.block_bytes for group in demand.groups)
    else:  # one more block of each group that lacks some would be too many
        more = [count + (count < high) for count, high in zip(shape.num_blocks, most, strict=True)]
        cost = sum(group.block_bytes * count for group, count in zip(demand.groups, more, strict=True))
        assert cost > num_bytes


FULL, WINDOWED = CacheGroup(100), CacheGroup(100, 1024)


@pytest.mark.parametrize(
    ("groups", "num_bytes", "expected"),
    [
        ((FULL, FULL), 6_553_600, ((32768, 32768), 8192, 64, 64 * 8192)),
        ((FULL, FULL), 13_107_200, ((65536, 65536), 8192, 64, 128 * 8192)),
        ((FULL, WINDOWED), 3_712_000, ((32768, 4352), 8192, 64, 64 * 8192)),
        ((FULL, WINDOWED), 7_424_000, ((65536, 8704), 8192, 64, 128 * 8192)),
        ((FULL, WINDOWED), 1_000_000, ((5648, 4352), 8192, 11, 5648 * 16)),
        ((FULL, WINDOWED), 60_000, ((406, 194), 6496, 1, 6496)),
        ((FULL, WINDOWED), 10_000, ((50, 50), 800, 1, 800)),
        ((WINDOWED,), 435_200, ((4352,), 8192, 64, 4352 * 16)),
        ((WINDOWED,), 10_000, ((100,), 1600, 1, 1600)),
    ],
)
def test_groups_have_as_many_blocks_until_a_window_has_enough(
    groups: tuple[CacheGroup, ...], num_bytes: int, expected: tuple[tuple[int, ...], int, int, int]
) -> None:
    """Of 64 sequences of 8,192 tokens, computed by 2,048 tokens a step."""
    shape = plan(CacheDemand(groups, 64, 2048, 8192, is_firm=False), num_bytes)
    assert expected == (shape.num_blocks, shape.max_model_length, shape.num_sequences, shape.num_tokens)


def test_on_a_machine_that_others_use_too_the_cache_has_what_sequences_fill() -> None:
    demand = CacheDemand((FULL, WINDOWED), 64, 2048, 8192, is_firm=False)
    assert plan_cache(demand, Budget(10**9, "a test", is_shared=True)).num_blocks == (32768, 4352)


def test_a_window_over_half_of_the_layers_takes_at_most_three_fifths() -> None:
    full, windowed = (
        CacheDemand((FULL, second), 64, 2048, 8192, is_firm=True) for second in (FULL, WINDOWED)
    )
    need = [count_bytes(demand.groups, demand.count_blocks(64, 8192)) for demand in (full, windowed)]
    assert need[1] / need[0] < 0.6
    filled = plan(windowed, need[1]).describe()
    assert "32768 blocks and 4352 blocks for windows of 1024 tokens, 3712000 bytes" in filled
