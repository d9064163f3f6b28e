"""Checks the token ids of a request against the model's vocabulary."""

import math
from collections.abc import Collection, Iterable

import numpy as np

from millrace_runtime.api.errors import BadRequestError
from millrace_runtime.api.request.generation_request import GenerationRequest
from millrace_runtime.protocol.messages import EngineReady


def check_ids(request: GenerationRequest, ready: EngineReady, end_token_ids: Iterable[int]) -> None:
    """Raise BadRequestError for a token id of the request, not of its prompts, that the model does not know.

    Also for a request that allows no token at all. The engine would fail on both in the middle of a step.
    """
    bias = request.sampling.bias
    for param, tokens in (
        ("logit_bias", [token for token, value in bias.items() if value > -math.inf]),
        ("bad_words", [token for token, value in bias.items() if value == -math.inf]),
        ("bad_words", [token for word in request.bad_sequences for token in word]),
        ("stop_token_ids", request.stop_token_ids),
    ):
        check_tokens(tokens, ready.vocabulary_size, param)
    if request.allowed_ids is not None:
        _check_allowed(request, request.allowed_ids, ready.vocabulary_size, end_token_ids)


def _check_allowed(
    request: GenerationRequest, packed: bytes, vocabulary_size: int, end_token_ids: Iterable[int]
) -> None:
    """Check the only tokens that may be drawn. Up to 262,144 sets and lookups would stop the event loop."""
    allowed = np.frombuffer(packed, dtype="<i4")
    check_tokens((int(allowed.min()), int(allowed.max())), vocabulary_size, "allowed_token_ids")
    is_free = np.zeros(vocabulary_size, dtype=bool)
    is_free[allowed] = True
    is_free[[token for token, value in request.sampling.bias.items() if value == -math.inf]] = False
    if not is_free.any():
        raise BadRequestError("`bad_words` bans all of `allowed_token_ids`: allow another", param="bad_words")
    ends = [*request.stop_token_ids, *(() if request.ignores_end else end_token_ids)]
    is_free[[token for token in ends if token < vocabulary_size]] = False
    if request.min_tokens and not is_free.any():
        raise BadRequestError(
            f"`allowed_token_ids` allows only tokens that end the answer, and `min_tokens` wants "
            f"{request.min_tokens} others before them: allow another token, or leave `min_tokens` out",
            param="min_tokens",
        )


def check_tokens(tokens: Collection[int], vocabulary_size: int, param: str) -> None:
    """Raise BadRequestError, about the field `param`, for a token id that the model does not know."""
    if tokens and (min(tokens) < 0 or max(tokens) >= vocabulary_size):
        raise BadRequestError(f"a token id is outside 0 to {vocabulary_size - 1}", param=param)
