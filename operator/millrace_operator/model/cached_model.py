"""The folder of a claim that a model is fetched into once, for all replicas or for those of a node. Pure.

Its name is made from where the model is and from the revision that its source told. So services that serve
the same share it, and another revision never changes what pods read.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from millrace_operator.api.model_types import Model
from millrace_operator.model.found_model import FoundModel
from millrace_runtime import contract

_READABLE_LENGTH, _DIGEST_LENGTH = 60, 16
_REVISIONS = {"hf": re.compile("@.*$"), "oci": re.compile("(@|:[^:/]*$).*$")}
"""What follows a model's place in its address, by the scheme. Buckets and web servers have no revisions."""


@dataclass(frozen=True)
class CachedModel:
    """Where the model of a revision is kept."""

    claim: str
    path: str
    """Of the model's folder in the claim."""

    @classmethod
    def read(cls, raw: Any) -> Self | None:
        """Return what a revision's record says; None where it says nothing."""
        if not isinstance(raw, Mapping):
            return None
        claim, path = raw.get("claimName"), raw.get("path")
        return cls(claim, path) if isinstance(claim, str) and isinstance(path, str) else None

    def render(self) -> dict[str, Any]:
        """Return it as records and status have it."""
        return {"claimName": self.claim, "path": self.path}


def find_place(model: Model, found: FoundModel | None) -> CachedModel | None:
    """Return where a model is kept; None where each pod fetches it, or its revision is not known yet."""
    claim, revision = model.cache.claim, None if found is None else found.revision
    return None if claim is None or revision is None else CachedModel(claim, name_folder(model.uri, revision))


def name_folder(uri: str, revision: str) -> str:
    """Return the folder of a model in any claim. Whatever the address says, it leads nowhere else."""
    scheme, _, rest = uri.partition("://")
    place = f"{scheme}://{_REVISIONS[scheme].sub('', rest) if scheme in _REVISIONS else rest.rstrip('/')}"
    readable = re.sub("[^a-z0-9]+", "-", place.lower())[:_READABLE_LENGTH].strip("-")
    digest = hashlib.sha256(f"{place}@{revision}".encode()).hexdigest()[:_DIGEST_LENGTH]
    return f"{contract.FOLDER_KEPT}/{readable}-{digest}"
