"""How the download of a pod's model gets on, out of the pod's answers in a row, and what is told of it. Pure.

What is told moves in steps, so that no status is written each second. A download that stands still is told
once, and one that begins anew is told with what it has. Only what brings it on counts as progress.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

from millrace_operator.reconcile.snapshot import Fetched

STEP_PERCENT = 10
STEP_SECONDS = 30.0
"""What is told moves by so much, or after so long."""
STALL_SECONDS = 60.0
"""Without a byte, until it is told that the download stands still."""
_MOST_SIZES = 8
"""Of one pod, that are remembered. A source that changes under way is looked at again, and has another."""


@dataclass(frozen=True)
class Course:
    """What is known of a pod's download. Times are seconds since 1970."""

    told: Fetched
    told_at: float
    last: Fetched
    """The last answer."""
    moved_at: float
    """When it last had another count than before, or its source asked for quiet: then none is due."""
    got_on_at: float
    """When it last got on."""
    tops: Mapping[int | None, int]
    """The most bytes that it ever had, by the size of all."""
    num_falls: int = 0
    """How often it began anew since it last had more than ever."""

    @classmethod
    def begin(cls, first: Fetched, began: float | None = None) -> Self:
        """Return what is known after a pod's first answer. The container that gave it began at `began`.

        What it has may have come at any time since then: who leads from now on has not seen it get on.
        """
        at = first.at if began is None else min(began, first.at)
        told = first._replace(at=at, is_first=at < first.at)
        return cls(told, first.at, first, first.at, at, {first.total_bytes: first.done_bytes})

    def go_on(self, answer: Fetched, began: float | None = None) -> Self:
        """Return what is known after one answer more. The container that gave it began at `began`."""
        if answer.is_quiet_alone:
            return self._keep_quiet(answer)
        known = self._count(answer)
        if not known.is_step(began):
            return known
        at = answer.at if known.got_on_at > self.told.at else self.told.at
        since = known.moved_at if known.is_stalled else None
        is_first = self.told.is_first and at == self.told.at and since is None
        told = answer._replace(at=at, stalled_since=since, is_first=is_first)
        return replace(known, told=told, told_at=answer.at)

    def _keep_quiet(self, answer: Fetched) -> Self:
        """Know until when the source asks for quiet. Nothing came, and nothing is lost."""
        known = replace(self, moved_at=answer.at)
        if answer.quiet_until == self.told.quiet_until:
            return known
        return replace(known, told=self.told._replace(quiet_until=answer.quiet_until), told_at=answer.at)

    def _count(self, answer: Fetched) -> Self:
        """Count an answer. It got on where it has more than ever, or more of what it lost.

        A size may be lost once: who begins anew again and again gets no farther.
        """
        size, done, last, tops = answer.total_bytes, answer.done_bytes, self.last, self.tops
        is_same = size == last.total_bytes
        is_still = is_same and done == last.done_bytes and answer.quiet_until is None
        is_farther = done > tops[size] if size in tops else len(tops) < _MOST_SIZES
        num_falls = self.num_falls + (not is_same or done < last.done_bytes)
        got_on = is_farther or (is_same and done > last.done_bytes and num_falls <= len(tops))
        return replace(
            self,
            last=answer,
            moved_at=self.moved_at if is_still else answer.at,
            got_on_at=answer.at if got_on else self.got_on_at,
            tops={**tops, size: done} if is_farther else tops,
            num_falls=0 if is_farther else num_falls,
        )

    @property
    def is_stalled(self) -> bool:
        """Whether nothing has come for long, of a model that is not all there."""
        total = self.last.total_bytes
        is_done = total is not None and self.last.done_bytes >= total
        return not is_done and self.last.at >= self.moved_at + STALL_SECONDS

    def is_step(self, began: float | None) -> bool:
        """Whether the last answer is worth telling after what was told before."""
        told, last = self.told, self.last
        is_far = (last.percent or 0) // STEP_PERCENT != (told.percent or 0) // STEP_PERCENT
        is_due = last.done_bytes != told.done_bytes and last.at >= self.told_at + STEP_SECONDS
        is_first = began is not None and told.at <= began < self.got_on_at  # it gets on after all
        has_turned = self.is_stalled != (told.stalled_since is not None)
        has_turned |= last.quiet_until != told.quiet_until
        return last.total_bytes != told.total_bytes or is_far or is_due or is_first or has_turned
