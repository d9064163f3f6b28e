"""Since when a deadline counts where a model is fetched, as the kubelet tells of the container. Pure.

A download takes as long as it takes, and one that stands still ends itself. So a deadline stands still while
its container runs, for some restarts of it at most.
"""

from collections.abc import Iterable

from millrace_operator.observed.pod_status import MOST_RESTARTS, FetchRun


def find_fetch_time(runs: Iterable[FetchRun], num_ended: int, now: float) -> float | None:
    """Return since when, in seconds since 1970; None where no fetch moves it.

    `num_ended` pods have ended for good and were made anew. Each counts as a restart: else pods that are
    evicted again and again would be progress for ever.
    """
    times = (_find_time(run, now) for run in runs if num_ended + run.num_failures <= MOST_RESTARTS)
    return max((at for at in times if at is not None), default=None)


def _find_time(run: FetchRun, now: float) -> float | None:
    return now if run.is_running else run.ended_at
