"""A revision that cannot be made yet: what it waits for, in words and for the plan. Pure."""

from dataclasses import dataclass
from enum import Enum, auto

from millrace_operator.api.conditions import Reason
from millrace_operator.model.cached_model import CachedModel
from millrace_operator.model.found_model import FoundModel
from millrace_operator.observed.snapshot import Fetched
from millrace_operator.render.model_source import find_claim
from millrace_operator.status.causes import Cause


class Stage(Enum):
    """What a revision waits for."""

    LOOK = auto()
    """A Job that looks at its model in a claim, for as long as that is worth it."""
    RESOLVE = auto()
    """A Job that asks its model's source for the revision."""
    CLAIM = auto()
    """A claim that its model can be fetched into."""
    FILL = auto()
    """A Job that fetches its model into the claim."""
    NEVER = auto()
    """Nothing: its model is known, and no pod can serve it."""


@dataclass(frozen=True)
class Pending:
    """A revision that cannot be made yet."""

    revision: str
    """Of the service."""
    uri: str
    stage: Stage = Stage.RESOLVE
    cause: Cause | None = None
    """Why it takes so long, or why it is never made."""
    found: FoundModel | None = None
    """What is known of its model."""
    place: CachedModel | None = None
    """Where its model is to be kept."""
    fetched: Fetched | None = None
    """How far the Job is that fetches it."""
    since: float | None = None
    """Since when its Job gets no farther, in seconds since 1970; None where there is none."""
    until: float | None = None
    """When the revision is made whether its Job has ended or not; None of one that is waited for."""
    late: Cause | None = None
    """That this Job has got no farther for too long."""
    is_asked_again: bool = False
    """Whether the source of a model that no pod serves may have another one later."""
    known_as: str | None = None
    """What `status.updateRevision` says meanwhile, as nobody knows yet whether it is another revision."""

    @property
    def name(self) -> str:
        """What `status.updateRevision` says."""
        return self.known_as or self.revision

    @property
    def reason(self) -> Reason:
        """What is waited for, in a word."""
        return Reason.FETCHING if self.stage is Stage.FILL else Reason.RESOLVING

    @property
    def is_stuck(self) -> bool:
        """Whether only somebody's doing can change that it waits."""
        return self.stage in (Stage.CLAIM, Stage.NEVER)

    def describe(self) -> str:
        """Return what is waited for."""
        if self.stage is Stage.LOOK:
            return f"a Job looks at the model in PersistentVolumeClaim {find_claim(self.uri)}"
        if self.stage is not Stage.FILL or self.place is None:
            return f"a Job asks which revision {self.uri} has"
        far = f": {self.fetched.describe()}" if self.fetched else ""
        return f"a Job fetches the model into PersistentVolumeClaim {self.place.claim}{far}"
