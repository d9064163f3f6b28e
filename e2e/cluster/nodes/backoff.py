"""How long a container waits before it starts again. Pure."""

from dataclasses import dataclass

from e2e.cluster.nodes.settings import Timing


@dataclass
class Backoff:
    """A first restart is at once, the second after 10 s, then doubling to 5 min; a long run resets it."""

    timing: Timing
    _next: float = 0.0

    def after_run(self, ran_seconds: float) -> float:
        """Return the seconds to wait after a run of this length."""
        if ran_seconds >= self.timing.backoff_reset:
            self._next = 0.0
        return self._advance()

    def after_refusal(self) -> float:
        """Return the seconds to wait after an attempt that did not start; never 0."""
        self._next = max(self._next, self.timing.backoff_first)
        return self._advance()

    def _advance(self) -> float:
        wait = self._next
        self._next = min(max(wait * 2, self.timing.backoff_first), self.timing.backoff_most)
        return wait


def should_restart(policy: str, exit_code: int, *, is_init: bool) -> bool:
    """Return whether a container that ended runs again."""
    if is_init:
        return exit_code != 0 and policy != "Never"
    return policy == "Always" or (policy == "OnFailure" and exit_code != 0)
