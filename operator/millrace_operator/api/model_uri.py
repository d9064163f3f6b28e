"""Whether a model at a URI is fetched or looked at, and whether it may change. Pure."""

import re
from urllib.parse import urlsplit

_PINNED = re.compile("hf://[^@]+@[0-9a-f]{40}|oci://[^@]+@sha256:[0-9a-f]{64}")
_FETCHED = frozenset({"hf", "s3", "oci", "https", "http"})


def is_fetched(uri: str) -> bool:
    """Whether the model is fetched before a replica starts, by each pod or once into a claim."""
    return urlsplit(uri).scheme in _FETCHED


def is_pinned(uri: str) -> bool:
    """Whether the URI names its content by a commit or a digest, so that the content never changes."""
    return _PINNED.fullmatch(uri) is not None


def is_looked_at(uri: str) -> bool:
    """Whether a Job looks at a model at this URI before its first pods, and so can look again."""
    return urlsplit(uri).scheme == "pvc"


def can_change(uri: str) -> bool:
    """Whether a source may have another model at this URI later, and the operator can ask it."""
    return is_fetched(uri) and not is_pinned(uri)
