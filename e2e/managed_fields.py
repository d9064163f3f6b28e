"""Who has written what of an object, as the API server keeps it."""

from typing import Any

OPERATOR = "millrace-operator"


def find_writers(obj: dict[str, Any], field: str) -> set[str]:
    """Return who has written a field of the spec."""
    return {
        entry["manager"]
        for entry in obj["metadata"]["managedFields"]
        if f"f:{field}" in entry["fieldsV1"].get("f:spec", {})
    }


def find_written(obj: dict[str, Any], manager: str) -> set[str]:
    """Return the parts of an object, such as spec or status, of which somebody has written something."""
    entries = [entry for entry in obj["metadata"]["managedFields"] if entry["manager"] == manager]
    return {name.removeprefix("f:") for entry in entries for name in entry["fieldsV1"]}
