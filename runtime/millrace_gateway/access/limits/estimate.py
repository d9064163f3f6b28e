"""How many tokens a request may use, before anybody has counted them. Pure."""

_BYTES_PER_TOKEN = 4
_USUAL_COMPLETION = 256
"""Tokens of an answer without a bound of its own."""


def estimate_tokens(num_bytes: int, max_tokens: int | None, num_choices: int) -> int:
    """Return the tokens to reserve for a body of this size and these bounds; at least 1."""
    completion = _USUAL_COMPLETION if max_tokens is None else max(0, max_tokens)
    return max(1, num_bytes // _BYTES_PER_TOKEN + completion * max(1, num_choices))
