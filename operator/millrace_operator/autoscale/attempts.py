"""What replicas that were added for late requests did for these, and when no more are added. Pure.

Requests may be late for a cause that no replica cures: a few prompts that are too long, a slow node. So each
step is judged by the next one: it helped if fewer requests are late than before. After two steps in turn that
did not, no more are asked for. That is forgotten where the cause may be another.
"""

import math
from dataclasses import dataclass, replace

from millrace_operator.resources.evidence_limits import FUTILE_STEPS

REMEMBERED_SECONDS, FAILED_SECONDS = 3600.0, 14_400.0
"""For how long a step is remembered, and for how long that steps failed."""
HELPED = 0.5
"""Of the part by which there are more replicas: by so much fewer are late after a step that helped."""
BETTER, BETTER_SECONDS = 0.75, 300.0
"""Of the burn, and for how long. A minute's burn is less by chance now and then: for five in turn seldom."""
WORSE, WORSE_BY = 2.0, 1.0
"""Times the burn, and beyond that: three standard deviations of the 60 requests that tell of a P95."""
MORE_LOAD = 1.3
"""Two standard deviations of a rate that is known to 15 %."""


@dataclass(frozen=True)
class Attempts:
    """The last count with which requests were late for so long that more were asked for."""

    replicas: int | None = None
    burn: float = 0.0
    """How many times as many as allowed were late, on average until then."""
    load: float = 0.0
    """Requests a second."""
    at: float = -math.inf
    asked: int = 0
    """The count that was asked for then; 0 once so many have served."""
    futile: int = 0
    """Steps in turn that did not help."""
    better_since: float | None = None

    @property
    def have_failed(self) -> bool:
        """Whether no more are asked for."""
        return self.futile >= FUTILE_STEPS

    def watch(self, now: float, burn: float | None, load: float | None) -> "Attempts":
        """Return what is still so after one more look; None where the burn or the load is not known."""
        if self.replicas is None:
            return self
        is_worse = burn is not None and burn > WORSE * self.burn + WORSE_BY
        is_more = load is not None and load > MORE_LOAD * self.load
        since = self._find_better_since(now, burn)
        is_better = since is not None and now - since >= BETTER_SECONDS
        is_old = now - self.at >= (FAILED_SECONDS if self.have_failed else REMEMBERED_SECONDS)
        if is_worse or is_more or is_better or is_old:
            return Attempts()
        return replace(self, better_since=since)

    def _find_better_since(self, now: float, burn: float | None) -> float | None:
        if burn is None or burn > BETTER * self.burn:
            return None
        return now if self.better_since is None else self.better_since

    def note(self, now: float, replicas: int, asked: int, burn: float, load: float) -> "Attempts":
        """Return the attempts after more than so many replicas were asked for; `burn` is the average of late.

        Where the count is the same as then no step was taken: it is pinned, or status is late.
        """
        if replicas == self.replicas:
            return self
        step = Attempts(replicas, burn, load, now, asked)
        if self.replicas is None or replicas < self.replicas:
            return step
        more = min(replicas / self.replicas - 1, 1.0)
        has_helped = burn <= (1 - HELPED * more) * self.burn
        return replace(step, futile=0 if has_helped else self.futile + 1)
