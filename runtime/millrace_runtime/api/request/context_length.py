"""Fits prompts and answers into the model's context length, or refuses them."""

import dataclasses
from collections.abc import Sequence

from millrace_runtime.api.errors import BadRequestError
from millrace_runtime.api.request.generation_request import GenerationRequest
from millrace_runtime.api.request.prompts import Prompted
from millrace_runtime.api.request.token_ids import check_tokens
from millrace_runtime.chat.tokenizer import Tokenizer
from millrace_runtime.protocol.messages import EngineReady

_SHARE = 4
"""A prompt that is cut for an answer without a limit leaves the answer a quarter of the model's length."""


def cut_prompts(prompted: Prompted, max_model_length: int, tokenizer: Tokenizer) -> Prompted:
    """Return the prompts, cut to their last tokens if the client wants that. Raises BadRequestError.

    With `truncation_side` the client may keep the first tokens instead. A cut text keeps the special tokens
    before it, as with transformers, and its echo is the rest of the text. A `truncate_prompt_tokens` of -1
    leaves room for the tokens that the client asks for, at least for one. If it sets no limit, the room is a
    quarter of the model's length: else an agent without a limit would get a single token in each turn.
    """
    request, prompts = prompted
    if request.max_prompt_tokens is None:
        return prompted
    kept, asked = request.max_prompt_tokens, request.max_tokens
    if asked is None:  # a default takes what is left
        asked = request.default_max_tokens if kept == -1 else 1
    is_endless = request.max_tokens is None and kept == -1 and asked >= max_model_length
    room = max_model_length // _SHARE if is_endless else asked if asked < max_model_length else 1
    most = max_model_length - max(1, room)
    if kept > most:
        raise BadRequestError(
            f"`truncate_prompt_tokens` is {kept}, and beside the answer this model takes {most} tokens: ask "
            "for fewer, or for -1",
            param="truncate_prompt_tokens",
        )
    kept = most if kept == -1 else kept
    num_front = min(kept, tokenizer.num_leading) if request.prompt.has_leading else 0
    texts, cut = list(request.prompt.texts), list(prompts)
    for place, prompt in enumerate(prompts):
        if len(prompt) > kept:
            begin = num_front if request.keeps_front else len(prompt) - kept + num_front
            rest = prompt[begin : begin + kept - num_front]
            cut[place] = [*prompt[:num_front], *rest]
            if texts:
                texts[place] = tokenizer.decode(rest, hides_special=False)
    wish = dataclasses.replace(request.prompt, texts=tuple(texts))
    return Prompted(dataclasses.replace(request, prompt=wish), cut)


def fit_prompt(prompt: Sequence[int], request: GenerationRequest, ready: EngineReady) -> int:
    """Return how many tokens to generate. Raises BadRequestError for a prompt that can never fit."""
    limit, length = ready.max_model_length, len(prompt)
    if not length:
        raise BadRequestError("a prompt without tokens can't be continued: send at least one", param="prompt")
    max_tokens = request.max_tokens
    if length + (max_tokens != 0) > limit:
        raise BadRequestError(
            f"the prompt has {length} tokens and this model's limit is {limit}, of which at least one is "
            "generated: shorten the prompt",
            code="context_length_exceeded",
        )
    if max_tokens is not None and length + max_tokens > limit:
        raise BadRequestError(
            f"the prompt has {length} tokens and {max_tokens} more are asked for, but this model's limit is "
            f"{limit} in all: ask for at most {limit - length}",
            param="max_tokens",
            code="context_length_exceeded",
        )
    check_tokens(prompt, ready.vocabulary_size, "prompt")
    return min(limit - length, request.default_max_tokens) if max_tokens is None else max_tokens
