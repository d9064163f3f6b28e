"""What is left to do after a plan was acted on."""

from dataclasses import dataclass
from typing import NamedTuple


class Retry(NamedTuple):
    """The bounds of a wait that doubles with each try in a row."""

    at_least_seconds: float
    at_most_seconds: float
    why: str
    """Tries for another reason don't count."""


SOON = Retry(0.0, 300.0, "soon")
"""What is there is not what was planned for, or a first step was taken: the next plan sees it."""
REFUSED = Retry(10.0, 60.0, "refused")
"""The API server refuses a child for a reason that status tells already. Nothing tells us when it is gone."""


@dataclass(frozen=True)
class Outcome:
    """When to plan again for this service, other than at an event of its own."""

    look_again: float | None = None
    """Seconds until something changes by time alone."""
    retry: Retry | None = None
    """There is more to do. Whoever asks waits longer from try to try: no plan may repeat at once for ever."""
    has_moved: bool = False
    """Whether a step was taken or told. A plan is made of what was there before it; the next may do more."""
    goes_on: bool = False
    """Whether what was to be tried again stays due as it was: this time nothing of it was tried."""
