"""What a condition said before, for a new leader that has no decision yet. Pure."""

from typing import Any

from millrace_operator.api.conditions import Reason, Truth, find_condition

OF_THE_PAST = frozenset({Reason.EXTERNAL, Reason.SCALED_TO_ZERO})
"""Reasons that end with what they tell of, and not only by a decision."""


def find_former_truth(old: dict[str, Any], condition: str) -> Truth | None:
    """Return the condition as the status `old` has it; None where it is not there, or tells of the past."""
    found = find_condition(old, condition)
    if found is None or found["reason"] in OF_THE_PAST or found["reason"] not in set(Reason):
        return None
    status = {"True": True, "False": False}.get(found["status"])
    return Truth(condition, status, Reason(found["reason"]), found["message"])
