"""What is known of a revision's model before a pod has it, and the folder of a claim that keeps it. Pure.

A Job's pod reported it, and the revision's record keeps it. So all replicas get the same model, and nobody
asks again.

The folder's name comes from the model's place and from the revision that its source reported. So services of
the same model share the folder, and another revision never changes what pods read.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from millrace_fit.errors import FactsError
from millrace_fit.facts import ModelFacts
from millrace_operator.api.model_types import Model
from millrace_runtime import contract

REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
"""A source's name of a revision."""
MOST_BYTES = 2**60
_READABLE_LENGTH, _DIGEST_LENGTH = 60, 16
_REVISIONS = {"hf": re.compile("@.*$"), "oci": re.compile("(@|:[^:/]*$).*$")}
"""What follows a model's place in its URI, by the scheme. Buckets and web servers have no revisions."""


@dataclass(frozen=True)
class FoundModel:
    """What a model's source reported, or a look at the model in its claim."""

    revision: str | None
    """None for a model in a claim: its content has no revision, and may change."""
    num_bytes: int | None = None
    """The size of the files that a replica reads; None if the source does not report it."""
    facts: ModelFacts | None = None
    """None if another version of Millrace wrote them."""

    @classmethod
    def read(cls, raw: Any) -> Self | None:
        """Return what a record or a pod reports; None if that is neither a revision nor facts."""
        if not isinstance(raw, Mapping):
            return None
        revision, num_bytes = raw.get("revision"), raw.get("numBytes")
        if revision is not None and not (isinstance(revision, str) and REVISION.fullmatch(revision)):
            return None
        is_size = type(num_bytes) is int and 0 <= num_bytes < MOST_BYTES
        found = cls(revision, num_bytes if is_size else None, _read_facts(raw.get("facts")))
        return None if found.revision is None and found.facts is None else found

    def render(self) -> dict[str, Any]:
        """Return it as a record has it."""
        record: dict[str, Any] = {} if self.revision is None else {"revision": self.revision}
        if self.num_bytes is not None:
            record["numBytes"] = self.num_bytes
        return record if self.facts is None else {**record, "facts": json.loads(self.facts.to_json())}


def _read_facts(raw: Any) -> ModelFacts | None:
    try:
        return None if raw is None else ModelFacts.from_json(json.dumps(raw))
    except FactsError:
        return None


@dataclass(frozen=True)
class CachedModel:
    """Where the model of a revision is kept."""

    claim: str
    path: str
    """The model's folder in the claim."""

    @classmethod
    def read(cls, raw: Any) -> Self | None:
        """Return the place in a revision's record; None without one."""
        if not isinstance(raw, Mapping):
            return None
        claim, path = raw.get("claimName"), raw.get("path")
        return cls(claim, path) if isinstance(claim, str) and isinstance(path, str) else None

    def render(self) -> dict[str, Any]:
        """Return it as records and status have it."""
        return {"claimName": self.claim, "path": self.path}


def find_place(model: Model, found: FoundModel | None) -> CachedModel | None:
    """Return where a model is kept; None if each pod fetches it, or if its revision is not known yet."""
    claim, revision = model.cache.claim, None if found is None else found.revision
    return None if claim is None or revision is None else CachedModel(claim, name_folder(model.uri, revision))


def name_folder(uri: str, revision: str) -> str:
    """Return the folder of a model in any claim. No URI can lead out of it."""
    scheme, _, rest = uri.partition("://")
    place = f"{scheme}://{_REVISIONS[scheme].sub('', rest) if scheme in _REVISIONS else rest.rstrip('/')}"
    readable = re.sub("[^a-z0-9]+", "-", place.lower())[:_READABLE_LENGTH].strip("-")
    digest = hashlib.sha256(f"{place}@{revision}".encode()).hexdigest()[:_DIGEST_LENGTH]
    return f"{contract.FOLDER_KEPT}/{readable}-{digest}"
