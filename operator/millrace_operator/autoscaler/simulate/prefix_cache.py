"""A simulated replica's prefix cache: how much of each prompt it has. It is empty at first."""

import math
import random
from dataclasses import dataclass

PROMPTS_TO_FILL = 50
"""After so many prompts it has two thirds of what a full one has. Made up."""
HITS_ALIKE = 3.0
"""The found shares of single prompts have a beta law with this sum of parameters: most prompts are found
nearly whole, or hardly."""


@dataclass(slots=True)
class PrefixCache:
    """The part of the prompts' tokens that it has once it is full; 0 while there is nothing to find."""

    share: float
    rng: random.Random
    num_prompts: int = 0

    def look_up(self, prompt_tokens: int) -> int:
        """Return how many tokens of the next prompt it has: never the last one."""
        share = self.share * (1 - math.exp(-self.num_prompts / PROMPTS_TO_FILL))
        self.num_prompts += 1
        if not share:
            return 0
        drawn = self.rng.betavariate(HITS_ALIKE * share, HITS_ALIKE * (1 - share))
        return int(drawn * (prompt_tokens - 1))
