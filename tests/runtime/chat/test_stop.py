import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace_runtime.chat.stop import StopMatcher, build_stops


def test_a_stop_string_across_pieces_is_never_emitted() -> None:
    matcher = StopMatcher(build_stops(("END",), {}))
    assert [matcher.feed(piece) for piece in ("one E", "N", "D two")] == ["one ", "", ""]
    assert matcher.is_matched
    assert matcher.feed("more") == ""


def test_a_prefix_that_comes_to_nothing_is_released() -> None:
    matcher = StopMatcher(build_stops(("END",), {}))
    assert matcher.feed("E") + matcher.feed("N") + matcher.feed("G") == "ENG"
    assert matcher.feed("EN") == ""
    assert matcher.finish() == "EN"


@pytest.mark.parametrize(("text", "left"), [("abcab!", "abc"), ("ababc", "ab"), ("xxab!ab!", "xx")])
def test_the_earliest_match_counts(text: str, left: str) -> None:
    matcher = StopMatcher(build_stops(("ab!", "abc") if text == "ababc" else ("ab!",), {}))
    assert "".join(map(matcher.feed, text)) == left


def text_before_the_first(text: str, stops: list[str]) -> str | None:
    """Letter by letter, the stop that is complete first ends the text; of those the longest."""
    for end in range(1, len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return text[: min(starts)]
    return None


def certain_part(text: str, stops: list[str]) -> str:
    """Without the longest end that is the beginning of a stop."""
    held = [size for stop in stops for size in range(1, len(stop)) if text.endswith(stop[:size])]
    return text[: len(text) - max(held, default=0)]


@given(
    st.lists(st.text("ab", max_size=8), max_size=8),
    st.lists(st.text("ab", min_size=1, max_size=6), max_size=4),
)
@settings(max_examples=500)
def test_any_cut_gives_the_text_before_the_first_stop(pieces: list[str], stops: list[str]) -> None:
    matcher = StopMatcher(build_stops(tuple(stops), {}))
    got, read, before = "", "", None
    for piece in pieces:
        got += matcher.feed(piece)
        read += piece
        before = text_before_the_first(read, stops)
        assert matcher.is_matched == (before is not None)
        assert got == (certain_part(read, stops) if before is None else before)
    assert got + matcher.finish() == (read if before is None else before)


def seconds_a_letter(stops: tuple[str, ...]) -> float:
    matcher = StopMatcher(build_stops(stops, {}))
    matcher.feed("a" * 199)
    began = time.process_time()
    for _ in range(2000):
        matcher.feed("a")
    return (time.process_time() - began) / 2000


def test_many_long_stops_cost_a_token_no_more_than_one() -> None:
    """Searched one by one they cost a hundred times as much."""
    many = ("b" + "a" * 255, *("a" * 200 + chr(98 + number) * 56 for number in range(15)))
    one, all_of_them = (min(seconds_a_letter(stops) for _ in range(5)) for stops in (("ab",), many))
    assert all_of_them < 10 * one


def test_a_special_token_ends_a_text_though_it_is_none() -> None:
    stops = build_stops(("x<|im_end|>", "<|im_end|>y"), {7: "<|im_end|>", 8: "<|other|>"})
    assert set(stops.marks) == {7}
    mark = stops.marks[7]
    matcher = StopMatcher(stops)
    assert matcher.feed("ax") + matcher.feed(mark + "b") == "a"
    written_out = StopMatcher(stops)
    assert written_out.feed("ax<|im_") + written_out.feed("end|>") == "a"
    late = StopMatcher(stops)
    assert late.feed("z" + mark) + late.feed("y") == "z"


def test_a_stop_that_is_kept_ends_the_text() -> None:
    matcher = StopMatcher(build_stops(("end",), {}, is_kept=True))
    assert matcher.feed("the en") + matcher.feed("d, then") == "the end"
