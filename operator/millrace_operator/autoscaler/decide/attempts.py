"""Whether replicas that were added for late requests helped, and when no more are added. Pure.

Requests may be late for a cause that no replica cures: a few prompts that are too long, a slow node. So each
step is judged at the next one: it helped if fewer requests are late than before. After two futile steps in a
row feedback asks for no more. It forgets that if the cause may be another. Each objective has its own
attempts.
"""

import math
from dataclasses import dataclass, replace

from millrace_operator.api.status_lines import FUTILE_STEPS

REMEMBERED_SECONDS, FAILED_SECONDS = 3600.0, 14_400.0
"""Feedback remembers a step, and the failure of steps, for so long."""
HELPED = 0.5
"""A step that adds a part p of the replicas helped if the burn fell by at least this times p."""
BETTER = 0.75
"""If the burn falls to this part, the cause may be another."""
WORSE, WORSE_BY = 2.0, 1.0
"""A factor of the burn and an addition: three standard deviations of the 60 requests that a P95 needs."""
MORE_LOAD = 1.3
"""Two standard deviations of a rate that is known to 15 %."""
LASTING_SECONDS = 300.0
"""With a look every two seconds, chance gives each hour a minute with fewer late requests, or more of all."""


@dataclass(frozen=True)
class Attempts:
    """The last count with which requests were late for so long that feedback asked for more."""

    replicas: int | None = None
    burn: float = 0.0
    """The mean burn until then."""
    load: float = 0.0
    """Requests a second."""
    at: float = -math.inf
    asked: int = 0
    """The count that feedback asked for then; 0 once so many have served."""
    futile: int = 0
    """Steps in a row that did not help."""
    better_since: float | None = None
    more_since: float | None = None
    """Since when the burn is lower than then, and since when the load is higher."""
    below: int | None = None
    below_burn: float = 0.0
    below_seconds: float = 0.0
    """A smaller count since then, its mean burn, and its time."""

    @property
    def have_failed(self) -> bool:
        """Whether feedback asks for no more replicas."""
        return self.futile >= FUTILE_STEPS

    @property
    def is_below_worse(self) -> bool:
        """Whether the present smaller count leaves more requests late, though more replicas did not help."""
        if self.replicas is None or self.below is None:
            return False
        fewer = min(self.replicas / max(self.below, 1) - 1, 1.0)
        is_more = self.below_seconds >= LASTING_SECONDS and self.below_burn > (1 + HELPED * fewer) * self.burn
        return is_more or self._is_worse(self.below_burn)

    def _is_worse(self, burn: float) -> bool:
        return burn > WORSE * self.burn + WORSE_BY

    def observe(
        self, now: float, passed: float, count: int, burn: float | None, load: float | None
    ) -> "Attempts":
        """Return the attempts after one more look at `count` replicas, `passed` seconds after the last one.

        `burn` and `load` are None if they are unknown. The attempts are empty if the cause may be another.
        """
        if self.replicas is None:
            return self
        seen = replace(
            self._look_below(passed, count, burn),
            better_since=_find_since(
                now, self.better_since, is_so=burn is not None and burn <= BETTER * self.burn
            ),
            more_since=_find_since(
                now, self.more_since, is_so=load is not None and load > MORE_LOAD * self.load
            ),
        )
        is_worse = burn is not None and self._is_worse(burn) and count >= self.replicas
        starts = (seen.better_since, seen.more_since)
        is_other = any(since is not None and now - since >= LASTING_SECONDS for since in starts)
        is_old = now - self.at >= (FAILED_SECONDS if self.have_failed else REMEMBERED_SECONDS)
        return Attempts() if is_worse or is_other or is_old else seen

    def _look_below(self, passed: float, count: int, burn: float | None) -> "Attempts":
        """Return the attempts after a look at fewer replicas than the count that did not help."""
        assert self.replicas is not None
        if not self.have_failed or count >= self.replicas:
            return replace(self, below=None)
        if burn is None:
            return self
        if count != self.below:
            return replace(self, below=count, below_burn=min(burn, WORSE * self.burn), below_seconds=0.0)
        mean = self.below_burn + (burn - self.below_burn) * (1 - math.exp(-passed / LASTING_SECONDS))
        return replace(self, below_burn=mean, below_seconds=self.below_seconds + passed)

    def add_step(self, now: float, replicas: int, asked: int, burn: float, load: float) -> "Attempts":
        """Return the attempts after feedback asked for more than `replicas`; `burn` is the mean burn.

        If the count is the same as then, no step was taken: it is pinned, or status is late.
        """
        if replicas == self.replicas:
            return self
        step = Attempts(replicas, burn, load, now, asked)
        if self.replicas is None or replicas < self.replicas:
            return step
        more = min(replicas / self.replicas - 1, 1.0)
        has_helped = burn <= (1 - HELPED * more) * self.burn
        return replace(step, futile=0 if has_helped else self.futile + 1)

    @classmethod
    def give_up(cls, since: float, replicas: int, burn: float, load: float) -> "Attempts":
        """Return the attempts after the largest allowed count has left requests late since a time."""
        return cls(replicas, burn, load, since, futile=FUTILE_STEPS)


def _find_since(now: float, since: float | None, *, is_so: bool) -> float | None:
    """Return since when a condition holds; None if it does not."""
    return (now if since is None else since) if is_so else None
