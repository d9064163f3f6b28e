import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace_runtime.engine.block_pool import BlockPool


def test_hands_out_every_block_once() -> None:
    pool = BlockPool(5)
    first, second = pool.allocate(2), pool.allocate(3)
    assert sorted(first + second) == [0, 1, 2, 3, 4]
    assert pool.num_free == 0
    pool.check_integrity(first + second)


def test_freed_blocks_come_back() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(3)
    pool.release(blocks[:2])
    assert sorted(pool.allocate(2)) == sorted(blocks[:2])


def test_nothing_is_allocated_without_room() -> None:
    with pytest.raises(AssertionError, match="3 blocks wanted, 2 free"):
        BlockPool(2).allocate(3)


def test_a_double_free_is_caught() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    pool.release(blocks)
    with pytest.raises(AssertionError, match="freed twice"):
        pool.release(blocks)


def test_a_leak_a_shared_block_and_a_stolen_block_are_caught() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(2)
    for held in (blocks[:1], [*blocks, blocks[0]], [0, 1, 2]):
        with pytest.raises(AssertionError, match="a reader that nobody counted"):
            pool.check_integrity(held)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 6), max_size=40))
def test_any_order_of_taking_and_giving_back_keeps_every_block(sizes: list[int]) -> None:
    pool = BlockPool(20)
    held: list[list[int]] = []
    for size in sizes:
        if size <= pool.num_free:
            held.append(pool.allocate(size))
        else:
            pool.release(held.pop(0))
        pool.check_integrity(block for blocks in held for block in blocks)
    assert pool.num_free == 20 - sum(map(len, held))
