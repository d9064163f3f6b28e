import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_operator.api.quantities import NUMBER_PATTERN, parse_number, render_number


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (14.2345, "14.2"),
        (999.9, "1000"),
        (123456.7, "123457"),
        (2.3e-8, "2.3e-08"),
        (None, None),
        (math.nan, None),
        (math.inf, None),
        (-1.0, None),
    ],
)
def test_three_digits_are_kept_and_what_is_unknown_stays_so(value: float | None, text: str | None) -> None:
    assert render_number(value) == text


@given(st.floats(min_value=0, max_value=1e12))
def test_every_figure_passes_the_schema_and_can_be_read_back(value: float) -> None:
    text = render_number(value)
    assert text is not None
    assert re.match(NUMBER_PATTERN, text)
    assert len(text) <= 32
    assert parse_number(text) == pytest.approx(value, rel=0.005, abs=1e-300)


def test_what_is_no_figure_is_unknown() -> None:
    assert parse_number(None) is None
    assert parse_number("a lot") is None
