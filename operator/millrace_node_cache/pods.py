"""Which models the pods of a node read, as they say it themselves. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

from millrace_node_cache.models import Uses
from millrace_runtime.contract import ANNOTATION_KEPT_BYTES, LABEL_KEPT

_OVER = ("Succeeded", "Failed")
_MOST_DIGITS = 18


def read_uses(pods: Iterable[Mapping[str, Any]]) -> Uses:
    """Return what these pods read. One that is over reads nothing more."""
    uses: dict[str, int] = {}
    for pod in pods:
        name = (pod["metadata"].get("labels") or {}).get(LABEL_KEPT)
        if name and pod.get("status", {}).get("phase") not in _OVER:
            uses[name] = max(uses.get(name, 0), _read_size(pod))
    return uses


def _read_size(pod: Mapping[str, Any]) -> int:
    text = (pod["metadata"].get("annotations") or {}).get(ANNOTATION_KEPT_BYTES, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS else 0
