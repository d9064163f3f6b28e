"""What a former leader told of conflicts and refused children, until this one has tried itself. Pure.

Both are met by writes alone, and whoever begins to lead has written nothing. Its first plan knows of none, so
it would call a service UpToDate that has not been so for days.
"""

from typing import Any

from millrace_operator.api.conditions import Reason, find_condition

MET_BY_WRITES = frozenset({Reason.CONFLICT, Reason.CHILD_REFUSED})


def keep_hearsay(status: dict[str, Any], old: dict[str, Any]) -> dict[str, Any]:
    """Return `status` with the conditions of `old` that tell of what only a write meets."""
    kept = [_keep(condition, find_condition(old, condition["type"])) for condition in status["conditions"]]
    return {**status, "conditions": kept}


def _keep(condition: dict[str, Any], old: dict[str, Any] | None) -> dict[str, Any]:
    if old is None or old.get("reason") not in MET_BY_WRITES:
        return condition
    return {**old, "observedGeneration": condition["observedGeneration"]}
