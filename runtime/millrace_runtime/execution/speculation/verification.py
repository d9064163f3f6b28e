"""Which guesses a step has proved.

A guess is one token and no distribution, so no sampling of rejections is needed. The ordinary sampler draws
at each position as if the guesses before it had been drawn, and a guess is right if it equals the draw. So a
text is the same as without guesses, also with a seed.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from millrace_runtime.protocol.step import FAULT_NOTHING_ALLOWED, TokenLogprobs


class Outcome(NamedTuple):
    """The rest of a draw's result beside its token: log-probabilities, or why the token is meaningless."""

    logprobs: list[TokenLogprobs]
    fault: str | None = None


class Verified(NamedTuple):
    """The tokens of a row's draws that count."""

    tokens: list[int]
    logprobs: list[TokenLogprobs]
    fault: str | None


def verify(guesses: Sequence[int], drawn: Sequence[int], outcomes: Sequence[Outcome]) -> Verified:
    """Return the draws up to the first one that is not its guess, or that has a fault.

    A row draws once more than it has guesses: the draw after a wrong guess continues another text. Where
    nothing is allowed behind a right guess, its mask was not made, and the next step draws there.
    """
    tokens: list[int] = []
    logprobs: list[TokenLogprobs] = []
    for number, (token, outcome) in enumerate(zip(drawn, outcomes, strict=True)):
        if outcome.fault is not None:
            is_mask_missing = tokens and outcome.fault == FAULT_NOTHING_ALLOWED
            return Verified(tokens, logprobs, None if is_mask_missing else outcome.fault)
        tokens.append(token)
        logprobs += outcome.logprobs
        if number < len(guesses) and token != guesses[number]:
            break
    return Verified(tokens, logprobs, None)


class DrawLayout(NamedTuple):
    """A step's draws, row after row; int64 [draws] each."""

    rows: NDArray[np.int64]
    """The number of each draw's row."""
    positions: NDArray[np.int64]
    """Of the drawn token in its sequence."""
    places: NDArray[np.int64]
    """The number of the token before it among the step's tokens."""


def lay_out_draws(
    rows: Sequence[int],
    drafts: Sequence[Sequence[int]],
    sizes: NDArray[np.int64],
    ends: NDArray[np.int64],
) -> DrawLayout:
    """Return the draws of the drawing `rows`, each with its draft.

    sizes and ends int64 [all rows] are each row's tokens and the position after them, with the draft.
    """
    counts = np.array([len(draft) for draft in drafts], dtype=np.int64) + 1
    repeated = np.array(rows, dtype=np.int64).repeat(counts)
    left = counts.cumsum().repeat(counts) - np.arange(counts.sum()) - 1  # draws of the row after this one
    return DrawLayout(repeated, ends[repeated] - left, sizes.cumsum()[repeated] - 1 - left)
