"""The annotation that has a model's source asked anew: the plugin writes it, the operator obeys it. Pure."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

from millrace_operator.api.model_uri import is_fetched, is_pinned

ANNOTATION = "millrace.dev/refresh"
LONGEST = 128


class Refresh(NamedTuple):
    """What a person has asked for. The same words again are no other wish, so they have their time."""

    revision: str
    """Of the service. Beside another spec the annotation says nothing."""
    at: str

    @classmethod
    def find(cls, service: Mapping[str, Any]) -> Self | None:
        """Return what a raw service's annotation says; None without one, or where it says nothing of this."""
        text = str((service["metadata"].get("annotations") or {}).get(ANNOTATION, ""))
        revision, word, at = text[:LONGEST].partition(" at ")
        return cls(revision, at) if word else None

    def __str__(self) -> str:
        return f"{self.revision} at {self.at}"


def is_looked_at(uri: str) -> bool:
    """Whether a Job looks at a model at this address before its first pods, and so can look again."""
    return urlsplit(uri).scheme == "pvc"


def can_change(uri: str) -> bool:
    """Whether a source can have another model at this address later, and somebody can ask it."""
    return is_fetched(uri) and not is_pinned(uri)
