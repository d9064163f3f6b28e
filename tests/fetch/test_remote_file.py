"""A file whose bytes come by the block is read as any other file."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_fetch.image.tarball import Allowance, EnoughError
from millrace_fetch.transfer import remote_file
from millrace_fetch.transfer.remote_file import FIRST_BYTES, MAX_BLOCK_BYTES, Blocks

CONTENT = bytes(range(251)) * 40_000
SIZE = len(CONTENT)


class Counted:
    """Gives bytes, and keeps what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def fetch(self, begin: int, end: int) -> bytes:
        assert 0 <= begin < end <= SIZE
        self.asked.append((begin, end))
        return CONTENT[begin:end]

    @property
    def num_bytes(self) -> int:
        return sum(end - begin for begin, end in self.asked)


POSITIONS = st.integers(0, SIZE + 1000)


SIZES = st.integers(0, 2 * remote_file.MAX_BLOCK_BYTES)


@given(st.lists(st.tuples(POSITIONS | st.none(), SIZES), max_size=8))
def test_it_reads_what_a_file_reads_and_spends_what_it_fetches(steps: list[tuple[int | None, int]]) -> None:
    counted, allowance = Counted(), Allowance(100 * SIZE)
    file, read = io.BytesIO(CONTENT), Blocks(counted.fetch, SIZE, allowance)
    for position, size in steps:
        if position is not None:
            file.seek(position)
            assert read.seek(position) == position
        assert read.read(size) == file.read(size)
        assert read.tell() == file.tell()
    assert allowance.left == 100 * SIZE - counted.num_bytes
    assert all(end - begin <= MAX_BLOCK_BYTES for begin, end in counted.asked)


def test_on_a_way_without_jumps_requests_are_few_and_after_a_jump_small() -> None:
    counted = Counted()
    read = Blocks(counted.fetch, SIZE, Allowance(SIZE))
    while read.read(10_000):
        pass
    assert counted.num_bytes == SIZE
    assert len(counted.asked) == 8
    counted.asked.clear()
    read = Blocks(counted.fetch, SIZE, Allowance(SIZE))
    for position in (0, 3_000_000, 6_000_000):
        read.seek(position)
        read.read(1)
    assert counted.num_bytes == 3 * FIRST_BYTES


def test_it_ends_where_no_more_may_be_spent() -> None:
    counted = Counted()
    read = Blocks(counted.fetch, SIZE, Allowance(200_000))
    assert read.read(200_000) == CONTENT[:200_000]
    with pytest.raises(EnoughError):
        read.read(1)
    assert counted.num_bytes == 200_000


def test_without_ranges_it_comes_whole_or_not_at_all() -> None:
    counted = Counted()
    read = Blocks(counted.fetch, SIZE, Allowance(SIZE), has_ranges=False)
    read.seek(5_000_000)
    assert read.read(10) == CONTENT[5_000_000:5_000_010]
    assert counted.asked == [(0, SIZE)]
    with pytest.raises(EnoughError):
        Blocks(counted.fetch, SIZE, Allowance(SIZE - 1), has_ranges=False).read(1)
