"""How long a container waits before it starts again. Pure."""

from dataclasses import dataclass

from e2e.cluster.nodes.settings import Timing


@dataclass
class Backoff:
    """The first restart is at once, then 10 s doubling to 5 min; a long run forgets."""

    timing: Timing
    _next: float = 0.0

    def after_run(self, ran_seconds: float) -> float:
        """Seconds to wait after a run of this length."""
        if ran_seconds >= self.timing.backoff_reset:
            self._next = 0.0
        return self.after_failure()

    def after_failure(self) -> float:
        """Seconds to wait after an attempt that did not start."""
        wait = self._next
        self._next = min(max(wait * 2, self.timing.backoff_first), self.timing.backoff_most)
        return wait


def should_restart(policy: str, exit_code: int, *, is_init: bool) -> bool:
    """Whether a container that ended runs again."""
    if is_init:
        return exit_code != 0 and policy != "Never"
    return policy == "Always" or (policy == "OnFailure" and exit_code != 0)
