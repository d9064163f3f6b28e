"""Amounts as Kubernetes writes them, and what only looks like one."""

from decimal import Decimal

import pytest

from millrace_operator.api.quantities import parse_quantity

LARGEST = "9223372036854775807"
"""What is more counts as this."""


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("2", "2"),
        ("+.5", "0.5"),
        ("1.", "1"),
        ("500m", "0.5"),
        ("16Gi", "17179869184"),
        ("3k", "3000"),
        ("1e3", "1000"),
        ("1E-2", "0.01"),
        ("1E", "1000000000000000000"),
        ("-1", "-1"),
        ("1e19", LARGEST),
        ("16Ei", LARGEST),
        ("1e999999", LARGEST),
        ("1e" + "9" * 30, LARGEST),
        ("-.5e" + "9" * 30, f"-{LARGEST}"),
        ("0e" + "9" * 30, "0"),
        ("1e-" + "9" * 30, "0"),
        ("7.450580596923828Gi", "7999999999.999999866"),  # the API server writes 7999999999999999866n
        ("1e-12", "1e-9"),
    ],
)
def test_an_amount_is_read(text: str, amount: str) -> None:
    assert parse_quantity(text) == Decimal(amount)


NO_AMOUNTS = ["", "NaN", "sNaN", "Infinity", "1_000", " 1", "1\n", "1K", "1e3Gi", ".", "٣"]


@pytest.mark.parametrize("text", NO_AMOUNTS)
def test_what_kubernetes_refuses_is_no_amount(text: str) -> None:
    with pytest.raises(ValueError, match="is no quantity"):
        parse_quantity(text)
