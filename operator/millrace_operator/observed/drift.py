"""Whether an object is as we want it. Only our own fields are compared."""

import hashlib
import json
import re
from typing import Any

import orjson

from millrace_operator.api.quantities import parse_quantity
from millrace_operator.kube.kinds import Obj

APPLIED = "millrace.dev/applied"
"""Annotation: the hash of what we applied. It shows fields that we no longer want."""
_OTHERWISE = re.compile(rb"\x7f|[:,\[]-?(?:[0-9.]+e|0\.0000)")
"""What both write, and not alike: DEL, and numbers with an exponent, which only one of them may write so."""


def seal(obj: Obj) -> Obj:
    """Return `obj` with the hash of itself in its annotations."""
    digest = hashlib.sha256(_write(obj)).hexdigest()[:16]
    metadata = obj["metadata"]
    return {
        **obj,
        "metadata": {**metadata, "annotations": {**metadata.get("annotations", {}), APPLIED: digest}},
    }


def _write(obj: Obj) -> bytes:
    """Return `obj` as `json` writes it, or all seals would be others. orjson takes a seventh of its time."""
    try:
        content = orjson.dumps(obj, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # a whole number beyond 64 bits
        content = b"\x7f"
    if content.isascii() and not _OTHERWISE.search(content):
        return content
    return json.dumps(obj, sort_keys=True, separators=(",", ":")).encode()


def has_drifted(desired: Any, observed: Any) -> bool:
    """Whether some field of `desired` is absent or different in `observed`."""
    if isinstance(desired, dict):
        # The API server leaves out what is empty.
        if not isinstance(observed, dict):
            return bool(desired)
        return any(has_drifted(value, observed.get(key)) for key, value in desired.items())
    if isinstance(desired, list):
        return _has_list_drifted(desired, observed)
    return bool(desired != observed) and not _are_equal_quantities(desired, observed)


def _has_list_drifted(desired: list[Any], observed: Any) -> bool:
    if not isinstance(observed, list):
        return bool(desired)
    if all(isinstance(item, dict) and "name" in item for item in desired):
        by_name = {item.get("name"): item for item in observed if isinstance(item, dict)}
        return any(has_drifted(item, by_name.get(item["name"])) for item in desired)
    pairs = zip(desired, observed, strict=False)
    return len(desired) != len(observed) or any(has_drifted(ours, theirs) for ours, theirs in pairs)


def _are_equal_quantities(desired: Any, observed: Any) -> bool:
    """Whether both are the same amount. The API server writes `1000m` as `1`."""
    try:
        return parse_quantity(str(desired)) == parse_quantity(str(observed))
    except ValueError:
        return False
