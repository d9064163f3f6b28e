"""Prompt lookup, and the histories that it reads."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from millrace_runtime.execution.speculation.proposer import LONGEST, MOST_PLACES, SHORTEST, find_continuation
from millrace_runtime.execution.speculation.speculation import History
from millrace_runtime.protocol.encoding import pack_tokens


def look_up(tokens: list[int], most: int) -> list[int]:
    """The definition, place by place."""
    for length in range(min(LONGEST, len(tokens) - 1), SHORTEST - 1, -1):
        for begin in range(len(tokens) - 1, length - 1, -1):
            if tokens[begin - length : begin] == tokens[-length:]:
                period = tokens[begin:]
                return [period[number % len(period)] for number in range(most)]
    return []


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(1, 6))
def test_the_text_goes_on_as_after_the_latest_longest_repetition(tokens: list[int], most: int) -> None:
    assert find_continuation(np.array(tokens, dtype=np.int32), most) == look_up(tokens, most)


@given(st.lists(st.integers(0, 2**31 - 1), min_size=1), st.lists(st.lists(st.integers(0, 9)), max_size=20))
def test_a_history_is_what_was_appended(prompt: list[int], parts: list[list[int]]) -> None:
    history, expected = History(pack_tokens(prompt)), list(prompt)
    for number, part in enumerate(parts):
        history.append(part)
        expected += part
        if number % 3 == 2:
            assert history.read().tolist() == expected
    assert history.read().tolist() == expected


def test_a_text_of_one_token_costs_no_more_than_its_latest_places(monkeypatch: pytest.MonkeyPatch) -> None:
    gathered: list[int] = []
    flatnonzero = np.flatnonzero

    def watch(mask: NDArray[np.bool_]) -> Any:
        return flatnonzero(mask).view(Watched)

    class Watched(np.ndarray):  # type: ignore[type-arg]
        def searchsorted(self, *args: Any, **options: Any) -> Any:
            gathered.append(len(self))
            return super().searchsorted(*args, **options)

    monkeypatch.setattr(np, "flatnonzero", watch)
    assert find_continuation(np.ones(100_000, dtype=np.int32), 4) == [1] * 4
    assert max(gathered) == MOST_PLACES
