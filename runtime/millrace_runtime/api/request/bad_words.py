"""Turns the texts of `bad_words` into what bans them, as vLLM does. Pure."""

import dataclasses
import math
from collections.abc import Sequence

import msgspec

from millrace_runtime.api.errors import BadRequestError
from millrace_runtime.api.request.intent import GenerationRequest
from millrace_runtime.protocol.sampling import MOST_BIASED

_PARAM = "bad_words"


def spell_words(words: Sequence[str]) -> list[str]:
    """Return the texts to tokenise: each word as it begins a text, and as it follows a space."""
    return [text for word in words for text in (word.lstrip(), " " + word.lstrip())]


def ban(request: GenerationRequest, tokens: Sequence[Sequence[int]]) -> GenerationRequest:
    """Return the request with its words banned. `tokens` are those of `spell_words`.

    A word of one token gets an infinite bias. Of the second spelling only a word of its own counts: as many
    tokens, and another first one. Raises BadRequestError.
    """
    found: dict[tuple[int, ...], None] = {}
    for word, plain, spaced in zip(request.bad_words, tokens[::2], tokens[1::2], strict=True):
        if not plain:
            raise BadRequestError(f"`{_PARAM}` has {word!r}, which is no token of this model", param=_PARAM)
        found[tuple(plain)] = None
        if len(spaced) == len(plain) and spaced[0] != plain[0]:
            found[tuple(spaced)] = None
    bias = request.sampling.bias | {word[0]: -math.inf for word in found if len(word) == 1}
    if len(bias) > MOST_BIASED:
        raise BadRequestError(
            f"`logit_bias` and `{_PARAM}` are of {len(bias)} tokens together: the limit is {MOST_BIASED}",
            param=_PARAM,
        )
    return dataclasses.replace(
        request,
        sampling=msgspec.structs.replace(request.sampling, bias=bias),
        bad_sequences=tuple(word for word in found if len(word) > 1),
    )
