import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_runtime.chat.stop import StopMatcher


def test_a_stop_string_across_pieces_is_never_emitted() -> None:
    matcher = StopMatcher(("END",))
    assert [matcher.feed(piece) for piece in ("one E", "N", "D two")] == ["one ", "", ""]
    assert matcher.is_matched
    assert matcher.feed("more") == ""


def test_a_prefix_that_comes_to_nothing_is_released() -> None:
    matcher = StopMatcher(("END",))
    assert matcher.feed("E") + matcher.feed("N") + matcher.feed("G") == "ENG"
    assert matcher.feed("EN") == ""
    assert matcher.finish() == "EN"


@pytest.mark.parametrize(("text", "left"), [("abcab!", "abc"), ("ababc", "ab"), ("xxab!ab!", "xx")])
def test_the_earliest_match_counts(text: str, left: str) -> None:
    matcher = StopMatcher(("ab!", "abc") if text == "ababc" else ("ab!",))
    assert "".join(map(matcher.feed, text)) == left


@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_any_cut_gives_the_text_before_the_first_stop(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(tuple(stops))
    got = "".join(map(matcher.feed, text))
    got += "" if matcher.is_matched else matcher.finish()
    ends = [i + len(s) for s in stops for i in [text.find(s)] if i >= 0]
    if not ends:
        assert got == text
    else:  # letter by letter, the stop that completes first wins; of those the longest
        end = min(ends)
        starts = [end - len(s) for s in stops if text[:end].endswith(s)]
        assert got == text[: min(starts)]
