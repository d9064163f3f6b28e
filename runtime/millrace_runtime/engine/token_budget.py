"""How many tokens of prompts a step may compute beside sequences that decode.

Each of these gets its next token when the step ends. A step that takes up to `--target-inter-token-seconds`
keeps their inter-token latency, and the prompt ends soonest with chunks as large as that allows.
"""

from millrace_runtime.engine.step_time import StepTime, StepWork

LEAST_SHARE = 0.25
"""A chunk may take at least so much of its step's time without it."""


class TokenBudget:
    """Keeps steps with decodes within a target, as far as they can.

    Where the decodes alone take as long as the target or longer, a chunk makes each step a quarter longer. So
    a long prompt ends whatever the target is, five or six times as late as alone.
    """

    def __init__(self, target_seconds: float) -> None:
        self._target_seconds = target_seconds
        self._step_time = StepTime()

    def observe(self, work: StepWork, seconds: float) -> None:
        """Learn from a step."""
        self._step_time.observe(work, seconds)

    def limit_chunk(self, work: StepWork, num_before: int) -> int:
        """Return the most tokens of prompts, at least 1, beside `work`, the step's decodes.

        The first of them comes after `num_before` tokens of its prompt. The aim is below the target by the
        error that predictions usually have.
        """
        without = self._step_time.predict(work)
        aim = self._target_seconds / (1 + self._step_time.spread)
        seconds = max(aim - without, LEAST_SHARE * without)
        return max(self._step_time.fit_chunk(seconds, num_before), 1)
