"""What the address of a model says of it. Pure."""

import re
from urllib.parse import urlsplit

_PINNED = re.compile("hf://[^@]+@[0-9a-f]{40}|oci://[^@]+@sha256:[0-9a-f]{64}")
_FETCHED = frozenset({"hf", "s3", "oci", "https", "http"})


def is_fetched(uri: str) -> bool:
    """Whether the model is fetched before a replica starts: by each pod, or once into a claim."""
    return urlsplit(uri).scheme in _FETCHED


def is_pinned(uri: str) -> bool:
    """Whether the address names its content, by a commit or a digest, and so never has another one."""
    return _PINNED.fullmatch(uri) is not None
