"""Recorded requests: each kind of file, the error of a bad line, and the shape of a scaled load."""

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from millrace_operator.autoscaler.simulate.load import Request
from millrace_operator.autoscaler.simulate.traces import (
    AZURE_HEAD,
    OUR_HEAD,
    TraceError,
    cut,
    read_file,
    read_lines,
    scale,
)

AZURE = [
    AZURE_HEAD,
    "2023-11-16 23:59:59.9000000,374,44",
    "2023-11-17 00:00:00.4000000,396,109",
]
MOONCAKE = [
    '{"timestamp": 27000, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}',
    '{"timestamp": 30000, "input_length": 7322, "output_length": 490, "hash_ids": []}',
]


def test_azure_traces_are_read_with_seconds_from_the_first_over_midnight() -> None:
    first, second = read_lines(AZURE)
    assert first == Request(0.0, 374, 44)
    assert second == Request(pytest.approx(0.5), 396, 109)


def test_mooncake_traces_are_read() -> None:
    assert list(read_lines(MOONCAKE)) == [Request(0.0, 6758, 500), Request(3.0, 7322, 490)]


def test_a_file_of_our_own_kind_is_read_as_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(f"\ufeff{OUR_HEAD}\r\n7,10,20\r\n7.5,11,21\r\n\r\n", encoding="utf-8")
    assert list(read_file(path)) == [Request(0.0, 10, 20), Request(0.5, 11, 21)]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], 'line 1 is ""; write "seconds,prompt_tokens,generation_tokens"'),
        (["when,in,out", "1,2,3"], 'line 1 is "when,in,out"; write "seconds,prompt_tokens'),
        ([OUR_HEAD, "0,1,1", "1,2"], 'line 3 is "1,2"; write a line like 0.25,374,44'),
        ([OUR_HEAD, "0,1,1", "1,two,3"], 'line 3 is "1,two,3"; write a line like'),
        ([OUR_HEAD, "0,0,1"], "line 2 .*; write 1 token or more"),
        ([OUR_HEAD, "inf,1,1"], "line 2 .*; write a finite time"),
        ([OUR_HEAD, "nan,1,1"], "line 2 .*; write a finite time"),
        ([OUR_HEAD, "5,1,1", "4,1,1"], "line 3 is earlier than the one before; sort"),
        ([AZURE_HEAD, "yesterday,1,1"], 'line 2 is "yesterday,1,1"; write a line like 2023-11-16'),
        ([MOONCAKE[0], '{"timestamp": 1}'], 'line 2 is .*; write a line like {"timestamp"'),
        ([MOONCAKE[0], "[]"], "line 2 is .*; write a line like"),
    ],
)
def test_a_bad_line_is_refused_with_its_number_and_what_to_write(lines: list[str], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        list(read_lines(lines))


def count_by_ten_seconds(requests: list[Request]) -> Counter[int]:
    return Counter(int(request.at // 10) for request in requests)


def test_a_scaled_burst_is_as_sharp_as_it_was() -> None:
    calm = [Request(10.0 * step, 100, 10) for step in range(60)]
    burst = [Request(300.1 + 0.02 * step, 100, 10) for step in range(100)]
    trace = sorted(calm + burst)
    scaled = list(scale(trace, 10, seed=1))
    assert len(scaled) == 10 * len(trace)
    assert all(one.at <= other.at for one, other in pairwise(scaled))
    once, tenfold = count_by_ten_seconds(trace), count_by_ten_seconds(scaled)
    assert max(once.values()) == once[30] == 101
    assert tenfold[30] == 10 * once[30]
    assert scaled[-1].at <= trace[-1].at + 5.0


def test_a_seed_gives_the_same_copies_and_another_gives_others() -> None:
    trace = [Request(float(step), 100 + step, 10) for step in range(20)]
    assert list(scale(trace, 3, seed=1)) == list(scale(trace, 3, seed=1))
    assert list(scale(trace, 3, seed=1)) != list(scale(trace, 3, seed=2))
    assert list(scale(trace, 1, seed=1)) == trace


def test_halves_of_a_trace_hold_every_request_once_and_begin_at_zero() -> None:
    trace = [Request(float(step), 1 + step, 10) for step in range(10)]
    first, second = list(cut(trace, 0, 5)), list(cut(trace, 5, 10))
    assert [request.prompt_tokens for request in first + second] == list(range(1, 11))
    assert [request.at for request in second] == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_what_can_be_neither_scaled_nor_cut_is_refused() -> None:
    with pytest.raises(TraceError, match="scaled by 0; write 1 or more"):
        list(scale([], 0, seed=1))
    with pytest.raises(TraceError, match="from 5 s to 5 s; write an end after"):
        list(cut([], 5, 5))


@pytest.mark.parametrize(
    ("times", "words"),
    [
        ((1_700_000_000_000, 1_700_000_800_000), "write seconds, not milliseconds"),
        ((1_700_000_000_000_000, 1_700_000_800_000_000), "write seconds, not milliseconds"),
        ((1_700_000_000, 1_700_000_000 + 61 * 86_400), "61 days after the first"),
    ],
)
def test_times_that_are_no_seconds_are_refused(times: tuple[int, ...], words: str) -> None:
    """Else `simulate` would run for weeks of virtual time, or fill the memory with minutes."""
    lines = [OUR_HEAD, *[f"{at},10,10" for at in times]]
    with pytest.raises(TraceError, match=words):
        list(read_lines(lines))
