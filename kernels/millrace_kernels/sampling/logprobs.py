"""Log-probabilities of drawn and of likely tokens, in plain torch: the definition, and the CPU path."""

from typing import NamedTuple

from torch import Tensor


class TopLogprobs(NamedTuple):
    """Of some rows: float32 log-probabilities, the model's own, before penalties and temperature."""

    drawn: Tensor
    """[rows]: of the drawn tokens"""
    ids: Tensor
    """int [rows, number]: the most likely tokens, from the likeliest on; which of equal ones may differ"""
    values: Tensor
    """[rows, number]: theirs"""


def top_logprobs_reference(logits: Tensor, rows: Tensor, tokens: Tensor, number: int) -> TopLogprobs:
    """Return the log-probabilities of some rows of float32 logits [any, vocabulary].

    rows int64 [rows] numbers them; tokens int64 [any] are those that all rows drew. There are as many likely
    ones as `number` says, or as there are.
    """
    logprobs = logits.index_select(0, rows).log_softmax(dim=-1)
    best = logprobs.topk(min(number, logits.shape[1]))
    drawn = logprobs.gather(1, tokens.index_select(0, rows)[:, None])[:, 0]
    return TopLogprobs(drawn, best.indices, best.values)
