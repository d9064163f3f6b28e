"""How many tokens a request may use, before anybody has counted them. Pure."""

_BYTES_PER_TOKEN = 4
USUAL_COMPLETION, _USUAL_ANSWER = 16, 256
"""Tokens without a bound of the request's own: of /v1/completions, as OpenAI has it, and of other answers."""


def estimate_tokens(num_bytes: int, max_tokens: int | None, num_choices: int) -> int:
    """Return the tokens to reserve for a body of this size and these bounds; at least 1."""
    completion = _USUAL_ANSWER if max_tokens is None else max(0, max_tokens)
    return max(1, num_bytes // _BYTES_PER_TOKEN + completion * max(1, num_choices))
