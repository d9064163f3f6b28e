"""How many tokens a request may use, before anybody has counted them. Pure."""

_BYTES_PER_TOKEN = 4
USUAL_COMPLETION, _USUAL_ANSWER = 16, 256
"""Tokens without a bound of the request's own: of /v1/completions, as OpenAI has it, and of other answers."""


def estimate_tokens(num_bytes: int, max_tokens: int | None, num_choices: int) -> int:
    """Return the tokens to reserve for a body of this size and these bounds; at least 1."""
    completion = _USUAL_ANSWER if max_tokens is None else max(0, max_tokens)
    return max(1, num_bytes // _BYTES_PER_TOKEN + completion * max(1, num_choices))


def estimate_turn(estimate: int, num_bytes: int, num_choices: int) -> int:
    """Return the part of an estimate that a request's turn counts until its use is known.

    An agent may allow 32,768 tokens and use 300. By its bound it would have one request at the replicas at a
    time. So no bound counts as more than what requests without one usually use. What a request has used
    beyond that counts at its end; until then its tenant's part of the places keeps it from taking more.
    """
    return min(estimate, estimate_tokens(num_bytes, None, num_choices))
