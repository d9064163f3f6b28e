"""Reads how a client wants tokens to be drawn: parameters, biases, banned words. Pure."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from millrace_runtime.api.errors import BadRequestError
from millrace_runtime.api.request.openai_bodies import GenerationBody
from millrace_runtime.protocol.sampling import MOST_BIASED, Sampling

AUTHOR_FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""Fields of a request for which a model's author may recommend a value."""
_PENALTIES = ("frequency_penalty", "presence_penalty")
_BAD_WORDS = "bad_words"


def read_sampling(
    body: GenerationBody, num_logprobs: int | None, num_prompt_logprobs: int | None
) -> Sampling:
    """Return the sampling of a body. Raises BadRequestError for a bias of no token id."""
    given = {
        name: value for name in (*AUTHOR_FIELDS, *_PENALTIES) if (value := getattr(body, name)) is not None
    }
    numbers = {"num_logprobs": num_logprobs, "num_prompt_logprobs": num_prompt_logprobs}
    return build_sampling(given | numbers | {"bias": _read_bias(body.logit_bias or {})})


def build_sampling(fields: dict[str, Any]) -> Sampling:
    """Return the sampling of these fields. Clients write a greedy draw and no top_k in several ways each."""
    if fields.get("top_p") == 0:  # of the smallest set of tokens, at least one is left: the most likely one
        fields = fields | {"temperature": 0.0, "top_p": 1.0}
    return Sampling(**fields | {"top_k": max(0, fields.get("top_k", 0))})


def _read_bias(bias: Mapping[str, float]) -> dict[int, float]:
    """Return the biases by token id. In JSON the ids are keys, so they are texts."""
    try:
        return {int(token): value for token, value in bias.items()}
    except ValueError:
        raise BadRequestError("the keys of `logit_bias` must be token ids", param="logit_bias") from None


class Bans(NamedTuple):
    """A request's banned words, as the engine bans them."""

    sampling: Sampling
    """The request's, with a bias of -infinity for each word of one token."""
    sequences: tuple[tuple[int, ...], ...]
    """The words of several tokens."""


def spell_words(words: Sequence[str]) -> list[str]:
    """Return two texts to tokenise for each word: as it begins a text, and as it follows a space."""
    return [text for word in words for text in (word.lstrip(), " " + word.lstrip())]


def ban_words(words: Sequence[str], tokens: Sequence[Sequence[int]], sampling: Sampling) -> Bans:
    """Return the bans of `bad_words`, as vLLM has them. `tokens` are those of `spell_words(words)`.

    The second spelling counts only if it has as many tokens as the first one, and another first token.
    Raises BadRequestError.
    """
    found: dict[tuple[int, ...], None] = {}
    for word, plain, spaced in zip(words, tokens[::2], tokens[1::2], strict=True):
        if not plain:
            raise BadRequestError(
                f"`{_BAD_WORDS}` has {word!r}, which is no token of this model", param=_BAD_WORDS
            )
        found[tuple(plain)] = None
        if len(spaced) == len(plain) and spaced[0] != plain[0]:
            found[tuple(spaced)] = None
    bias = sampling.bias | {word[0]: -math.inf for word in found if len(word) == 1}
    if len(bias) > MOST_BIASED:
        raise BadRequestError(
            f"`logit_bias` and `{_BAD_WORDS}` have {len(bias)} tokens together: the limit is {MOST_BIASED}",
            param=_BAD_WORDS,
        )
    return Bans(msgspec.structs.replace(sampling, bias=bias), tuple(word for word in found if len(word) > 1))
