from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_operator.api.annotations import (
    PIN_ANNOTATION,
    Pin,
    PinError,
    find_active_pin,
    find_pin,
    parse_moment,
    parse_pin,
)

THREE = datetime(2026, 1, 2, 3, tzinfo=UTC).timestamp()
EXAMPLE = "12 until 2026-01-02T03:00:00Z"


def service(text: object = None) -> dict[str, Any]:
    return {"metadata": {"annotations": {PIN_ANNOTATION: text}} if text is not None else {}}


def test_the_example_is_read_and_written() -> None:
    assert parse_pin(EXAMPLE) == Pin(12, THREE)
    assert str(Pin(12, THREE)) == EXAMPLE


def test_a_time_in_another_zone_is_the_same_moment() -> None:
    assert parse_pin("12 until 2026-01-02T05:00:00+02:00") == Pin(12, THREE)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "12",
        "12 until",
        "12 until tomorrow",
        "12 until 2026-01-02T03:00:00",
        "12 until 2026-01-02",
        "-1 until 2026-01-02T03:00:00Z",
        "1.5 until 2026-01-02T03:00:00Z",
        "12 until 9999-12-31T23:59:59-12:00",
        "12 until 0001-01-01T00:00:00+12:00",
        "x" * 5000,
    ],
)
def test_what_is_no_pin_is_refused_with_its_form(text: str) -> None:
    with pytest.raises(PinError, match="which is COUNT until") as refusal:
        parse_pin(text)
    assert len(str(refusal.value)) < 200
    assert find_active_pin(service(text), 0.0) is None


@given(st.text())
def test_no_text_is_fatal(text: str) -> None:
    pin = find_active_pin(service(text), 0.0)
    assert pin is None or str(pin)


def test_it_holds_until_its_lapse_and_not_at_it() -> None:
    assert find_active_pin(service(EXAMPLE), THREE - 1) == Pin(12, THREE)
    assert find_active_pin(service(EXAMPLE), THREE) is None
    assert find_pin(service(EXAMPLE)) == Pin(12, THREE)
    assert find_pin(service()) is None
    assert find_pin({"metadata": {"annotations": None}}) is None


def test_a_moment_without_its_zone_is_refused() -> None:
    assert parse_moment("2026-01-02T03:00:00Z") == THREE
    with pytest.raises(ValueError, match="with its zone"):
        parse_moment("2026-01-02T03:00:00")
