"""Turns a body into prompts of token ids. The text worker does the long parts."""

import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar

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
from millrace_runtime.chat.worker import TextWorker
from millrace_runtime.grammar.errors import GrammarError
from millrace_runtime.grammar.reasoning import write_unproven
from millrace_runtime.grammar.source import GrammarSource
from millrace_runtime.protocol.messages import Grammar

Prompts = Sequence[Sequence[int]]
Result = TypeVar("Result")
_RETRY_SECONDS = 5
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
