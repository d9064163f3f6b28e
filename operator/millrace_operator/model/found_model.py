"""What is known of a revision's model before a pod has it. Pure.

A Job's pod told it, and the revision's record keeps it. So all replicas get the same model, and nobody asks
again.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from millrace_fit.errors import FactsError
from millrace_fit.facts import ModelFacts

REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
"""What a source may call a revision."""
MOST_BYTES = 2**60


@dataclass(frozen=True)
class FoundModel:
    """What a model's source has told, or a look at it in its claim."""

    revision: str | None
    """None of a model in a claim: what is there has no revision, and may change."""
    num_bytes: int | None = None
    """Of the files that a replica reads; None where the source does not say it."""
    facts: ModelFacts | None = None
    """None where another version of Millrace wrote them."""

    @classmethod
    def read(cls, raw: Any) -> Self | None:
        """Return what a record or a pod says; None where that is neither a revision nor facts."""
        if not isinstance(raw, Mapping):
            return None
        revision, num_bytes = raw.get("revision"), raw.get("numBytes")
        if revision is not None and not (isinstance(revision, str) and REVISION.fullmatch(revision)):
            return None
        is_size = type(num_bytes) is int and 0 <= num_bytes < MOST_BYTES
        found = cls(revision, num_bytes if is_size else None, _read_facts(raw.get("facts")))
        return None if found.revision is None and found.facts is None else found

    def render(self) -> dict[str, Any]:
        """Return it as a record keeps it."""
        record: dict[str, Any] = {} if self.revision is None else {"revision": self.revision}
        if self.num_bytes is not None:
            record["numBytes"] = self.num_bytes
        return record if self.facts is None else {**record, "facts": json.loads(self.facts.to_json())}


def _read_facts(raw: Any) -> ModelFacts | None:
    try:
        return None if raw is None else ModelFacts.from_json(json.dumps(raw))
    except FactsError:
        return None
