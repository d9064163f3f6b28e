"""The sampling parameters of a sequence."""

import msgspec


class Sampling(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Sampling parameters of one sequence, already validated and with its own seed.

    A draw is from softmax(logits / temperature), cut to the tokens that are at least `min_p` times as likely
    as the most likely one, then to the `top_k` most likely, and then to the smallest set of total probability
    `top_p`. The draw at position p is `uniform(seed, p)`, a counter-based random number, so a sequence's
    text depends only on the sequence itself.
    """

    temperature: float = 1.0
    """0 means greedy; ties go to the lowest token id."""
    top_p: float = 1.0
    top_k: int = 0
    """0 means no limit."""
    min_p: float = 0.0
    """0 means no limit."""
    seed: int = 0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    num_logprobs: int | None = None
    """Log-probabilities wanted: None none, 0 only the drawn token's, n also the n most likely."""


COSTLY = Sampling(temperature=1.0, top_p=0.9, top_k=50, min_p=0.01, frequency_penalty=0.1, num_logprobs=20)
"""The most expensive draw, for warming up and measuring before the first request."""
