"""Turns a body into prompts of token ids that fit the model. The text worker does the long parts."""

import dataclasses
import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from millrace_runtime.api.errors import BadRequestError, GenerationError, UnavailableError
from millrace_runtime.api.request.generation_request import GenerationRequest, decode_request
from millrace_runtime.api.request.readers import READERS
from millrace_runtime.api.request.sampling import ban_words, spell_words
from millrace_runtime.api.workers.grammar_worker import GrammarWorker
from millrace_runtime.chat.errors import (
    BodyRefusedError,
    NoTextWorkerError,
    TextMemoryError,
    TextTimeoutError,
    TextWorkerDiedError,
    TextWorkerError,
)
from millrace_runtime.chat.jobs import EncodeTexts
from millrace_runtime.chat.tokenizer import Tokenizer
from millrace_runtime.chat.worker import TextWorker
from millrace_runtime.grammar.errors import GrammarError
from millrace_runtime.grammar.reasoning import write_unproven
from millrace_runtime.grammar.source import GrammarSource
from millrace_runtime.protocol.messages import EngineReady, Grammar

Prompts = Sequence[Sequence[int]]
Result = TypeVar("Result")
_RETRY_SECONDS = 5
_SHARE = 4
"""A prompt that is cut for an answer without a limit leaves the answer a quarter of the model's length."""
_SCORE_BYTES = 75
"""Of one log-probability of a prompt's token in an answer's JSON: measured with 20 likely tokens."""


class Prompted(NamedTuple):
    """A request and its prompts' token ids."""

    request: GenerationRequest
    prompts: Prompts


async def read_prompts(
    dialect: str,
    body: bytearray,
    text: TextWorker,
    inline_bytes: int,
    on_request: Callable[[GenerationRequest], None],
    *,
    max_prompt_tokens: int | None,
) -> Prompted:
    """Return a body's request and prompts. `on_request` gets the request before a text is tokenised.

    `body` is emptied as soon as it is read or encoded for the worker, because admission counts it once.

    Raises BadRequestError, UnavailableError, GenerationError, and the errors of `on_request`.
    """
    try:
        request, prompts = await _read(
            dialect, body, text, inline_bytes, on_request, max_prompt_tokens=max_prompt_tokens
        )
        if request.bad_words:
            words = EncodeTexts(spell_words(request.bad_words), adds_special_tokens=False)
            tokens = await _await_job(text.run(words), is_large=False)
            bans = ban_words(request.bad_words, tokens, request.sampling)
            request = dataclasses.replace(request, sampling=bans.sampling, bad_sequences=bans.sequences)
        return Prompted(request, prompts)
    except OverflowError as error:  # messages to the text worker have numbers of 64 bits
        raise BadRequestError("the request has a whole number beyond 64 bits: send a smaller one") from error


async def _read(
    dialect: str,
    body: bytearray,
    text: TextWorker,
    inline_bytes: int,
    on_request: Callable[[GenerationRequest], None],
    *,
    max_prompt_tokens: int | None,
) -> Prompted:
    if len(body) > inline_bytes:
        reading = text.read(dialect, body, max_prompt_tokens)
        body.clear()
        read = await _await_job(reading, is_large=True)
        request = decode_request(read.request)
        on_request(request)
        return Prompted(request, read.prompts)
    request, prompts = READERS[dialect](body)
    body.clear()
    on_request(request)
    if isinstance(prompts, list):
        return Prompted(request, prompts)
    encoding = text.run(prompts, max_prompt_tokens)
    del prompts
    return Prompted(request, await _await_job(encoding, is_large=False))


async def prove_grammar(source: GrammarSource | None, worker: GrammarWorker) -> Grammar | None:
    """Return the grammar as the engine takes it. Raises BadRequestError and UnavailableError."""
    if source is None:
        return None
    if source.is_ours:
        return write_unproven(source.text, source.before)
    try:
        return await worker.prove(source)
    except GrammarError as error:
        raise BadRequestError(
            f"`{source.field}` can't be used: {error}", param=source.field, code="invalid_grammar"
        ) from error


async def _await_job(job: Awaitable[Result], *, is_large: bool) -> Result:
    """Return the job's answer. Raises the ApiError that the client gets.

    A large body that took too long or ended the worker would do so again, so the client must shorten it. A
    small one met a busy machine or a fault of the model's files, so the client may retry.
    """
    try:
        return await job
    except BodyRefusedError as error:
        raise BadRequestError(str(error), param=error.param, code=error.code) from error
    except (TextTimeoutError, TextMemoryError, TextWorkerDiedError) as error:
        if is_large:
            raise BadRequestError(f"{error}: shorten it") from error
        raise UnavailableError(str(error), retry_after=_RETRY_SECONDS) from error
    except NoTextWorkerError as error:
        raise UnavailableError(str(error), retry_after=_RETRY_SECONDS) from error
    except TextWorkerError as error:
        raise GenerationError(str(error)) from error


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
    _check_tokens(prompt, ready.vocabulary_size, "prompt")
    return min(limit - length, request.default_max_tokens) if max_tokens is None else max_tokens


def check_scores(request: GenerationRequest, prompts: Prompts, max_bytes: int) -> None:
    """Raise BadRequestError for log-probabilities of prompts that take more memory than one request may.

    Each choice of a completion holds its prompt's, and the first choice of a chat.
    """
    wish, num_echoes = request.prompt, request.num_choices
    fields = [("prompt_logprobs", wish.num_logprobs, 1 if request.answer.is_chat else num_echoes)]
    if wish.is_echoed:
        fields.append(("logprobs", request.sampling.num_logprobs, num_echoes))
    num_tokens = sum(map(len, prompts))
    sizes = {
        param: num_tokens * num_holders * (number + 1) * _SCORE_BYTES
        for param, number, num_holders in fields
        if number is not None
    }
    if sum(sizes.values()) > max_bytes:
        param = max(sizes, key=sizes.__getitem__)
        raise BadRequestError(
            f"the log-probabilities of {num_tokens} prompt tokens take some {sum(sizes.values())} bytes, and "
            f"one request may take {max_bytes}: send fewer or shorter prompts, or a smaller `n` or `{param}`",
            param=param,
        )


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
        _check_tokens(tokens, ready.vocabulary_size, param)
    if request.allowed_ids is not None:
        _check_allowed(request, request.allowed_ids, ready.vocabulary_size, end_token_ids)


def _check_allowed(
    request: GenerationRequest, packed: bytes, vocabulary_size: int, end_token_ids: Iterable[int]
) -> None:
    """Check the only tokens that may be drawn. Up to 262,144 sets and lookups would stop the event loop."""
    allowed = np.frombuffer(packed, dtype="<i4")
    _check_tokens((int(allowed.min()), int(allowed.max())), vocabulary_size, "allowed_token_ids")
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


def _check_tokens(tokens: Collection[int], vocabulary_size: int, param: str) -> None:
    if tokens and (min(tokens) < 0 or max(tokens) >= vocabulary_size):
        raise BadRequestError(f"a token id is outside 0 to {vocabulary_size - 1}", param=param)
