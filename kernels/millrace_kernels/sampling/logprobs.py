"""Log-probabilities of drawn and of likely tokens, in plain torch: the definition, and the CPU path."""

from typing import NamedTuple

from torch import Tensor


class TopLogprobs(NamedTuple):
    """Float32 log-probabilities of some rows: the model's own, before penalties and temperature."""

    drawn: Tensor
    """[rows]: for the drawn tokens"""
    ids: Tensor
    """int [rows, number]: the most likely tokens, the likeliest first; the order of equal ones may differ"""
    values: Tensor
    """[rows, number]: for these tokens"""


def top_logprobs_reference(logits: Tensor, rows: Tensor, tokens: Tensor, number: int) -> TopLogprobs:
    """Return the log-probabilities of some rows of float32 logits [any, vocabulary].

    rows int64 [rows] has their indices; tokens int64 [any] are the drawn tokens of all rows. Returns `number`
    likely tokens, or the whole vocabulary if that is smaller.
    """
    logprobs = logits.index_select(0, rows).log_softmax(dim=-1)
    best = logprobs.topk(min(number, logits.shape[1]))
    drawn = logprobs.gather(1, tokens.index_select(0, rows)[:, None])[:, 0]
    return TopLogprobs(drawn, best.indices, best.values)
