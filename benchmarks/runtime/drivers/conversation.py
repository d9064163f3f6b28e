"""What a driver and the benchmark say to each other: a line of JSON each, over the driver's stdin and stdout.

The driver says {"ready": version} once it has loaded; then each line {"prompts": […], "num_tokens": n} is
answered with the requests' [sent, first token, last token, number of tokens, number that came first]. The
times of one without a token are null.
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Any

Complete = Callable[[list[list[int]], int], list[list[Any]]]
"""Answers all prompts at once with so many tokens each."""


def converse(load: Callable[[], tuple[str, Complete]]) -> None:
    """Load the engine, then answer until the input ends."""
    with os.fdopen(os.dup(1), "w", buffering=1) as answers:
        os.dup2(2, 1)  # what the library prints is no answer
        version, complete = load()
        answers.write(json.dumps({"ready": version}) + "\n")
        for line in sys.stdin:
            question = json.loads(line)
            found = complete(question["prompts"], question["num_tokens"])
            answers.write(json.dumps({"completions": found}) + "\n")


class Progress:
    """Notes one request's tokens as they come."""

    def __init__(self, now: float) -> None:
        self._sent = now
        self._first: float | None = None
        self._last: float | None = None
        self._num_tokens = self._num_first_tokens = 0

    def note(self, num_tokens: int, now: float) -> None:
        """So many tokens came."""
        if not num_tokens:
            return
        if self._first is None:
            self._first, self._num_first_tokens = now, num_tokens
        self._last = now
        self._num_tokens += num_tokens

    def to_list(self) -> list[Any]:
        """Return what the benchmark reads."""
        return [self._sent, self._first, self._last, self._num_tokens, self._num_first_tokens]
