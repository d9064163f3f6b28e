"""Requests that want a prompt's tokens and no answer of the model: /tokenize, /detokenize, count_tokens."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial

import orjson
from starlette.types import Receive, Scope, Send

from millrace_runtime import contract
from millrace_runtime.api.admission import Ticket
from millrace_runtime.api.answer.anthropic import MessagesWriter
from millrace_runtime.api.answer.openai import OpenAiWriter
from millrace_runtime.api.answer.writer import Writer
from millrace_runtime.api.connection.asgi import Answer, Body
from millrace_runtime.api.errors import (
    ApiError,
    BadRequestError,
    ClientGoneError,
    GenerationError,
    OverloadedError,
)
from millrace_runtime.api.replica_state import ReplicaState
from millrace_runtime.api.request.prompts import Prompted, read_prompts
from millrace_runtime.protocol.messages import EngineReady

logger = logging.getLogger(__name__)
_MOST_LENGTHS = 4
"""A prompt may be this many times as long as the model's length. A longer one would keep the text worker from
chats."""
Encode = Callable[[ReplicaState, EngineReady, Prompted], bytes]


class PromptExchange:
    """One such request and its answer. Admission and a drain count it; the metrics of generations do not."""

    def __init__(self, replica: ReplicaState, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        """`path` is a key of ANSWERS."""
        self._replica = replica
        self._reader, self._encode, writer = ANSWERS[path]
        settings = replica.settings
        self._body = Body(scope, receive, settings.max_body_bytes, settings.body_seconds)
        self._answer = Answer(scope, send, writer.encode_error, writer.encode_error_event)
        self._ticket = Ticket()

    async def run(self) -> None:
        """Serve the request. Whatever fails in it is answered to its client."""
        try:
            with self._replica.open_request() as ready:
                await self._answer.send_json(200, await self._serve(ready))
        except ApiError as error:
            await self._answer.fail(error, closes=self._replica.is_draining)
        except ClientGoneError:
            pass
        except Exception:
            logger.exception("a request failed")
            await self._answer.fail(GenerationError("this server failed on the request; its log says why"))
        finally:
            self._replica.admission.release(self._ticket)

    async def _serve(self, ready: EngineReady) -> bytes:
        admission = self._replica.admission
        self._body.check_declared()
        if (refusal := admission.admit_count(self._ticket)) is not None:
            raise OverloadedError(refusal.message, retry_after=refusal.retry_after_seconds)
        body = await self._body.read(partial(self._grow, ready))
        prompted = await read_prompts(
            self._reader,
            body,
            self._replica.text,
            self._replica.settings.inline_body_bytes,
            lambda request: self._replica.require_model(request.model),
            max_prompt_tokens=_MOST_LENGTHS * ready.max_model_length,
        )
        return await asyncio.to_thread(self._encode, self._replica, ready, prompted)

    def _grow(self, ready: EngineReady, num_bytes: int) -> None:
        refusal = self._replica.admission.grow(self._ticket, num_bytes, max_tokens=ready.max_model_length)
        if refusal is not None:
            raise OverloadedError(refusal.message, retry_after=refusal.retry_after_seconds)


def _encode_tokens(replica: ReplicaState, ready: EngineReady, prompted: Prompted) -> bytes:
    [tokens] = prompted.prompts
    shows_pieces = prompted.request.prompt.shows_pieces
    return orjson.dumps(
        {
            "count": len(tokens),
            "max_model_len": ready.max_model_length,
            "tokens": list(tokens),
            "token_strs": [replica.tokenizer.token_piece(token) for token in tokens]
            if shows_pieces
            else None,
        }
    )


def _encode_text(replica: ReplicaState, ready: EngineReady, prompted: Prompted) -> bytes:
    [tokens] = prompted.prompts
    if len(tokens) > ready.max_model_length:
        raise BadRequestError(
            f"{len(tokens)} tokens are more than this model's {ready.max_model_length}: send fewer",
            param="tokens",
        )
    if len(tokens) and not 0 <= min(tokens) <= max(tokens) < ready.vocabulary_size:
        raise BadRequestError(f"a token id is outside 0 to {ready.vocabulary_size - 1}", param="tokens")
    return orjson.dumps({"prompt": replica.tokenizer.decode(list(tokens), hides_special=False)})


def _encode_count(replica: ReplicaState, ready: EngineReady, prompted: Prompted) -> bytes:
    del replica, ready
    [tokens] = prompted.prompts
    return orjson.dumps({"input_tokens": len(tokens)})


ANSWERS: dict[str, tuple[str, Encode, type[Writer]]] = {
    contract.PATH_TOKENIZE: ("tokenize", _encode_tokens, OpenAiWriter),
    contract.PATH_DETOKENIZE: ("detokenize", _encode_text, OpenAiWriter),
    contract.PATH_COUNT_TOKENS: ("messages/count_tokens", _encode_count, MessagesWriter),
}
"""By path: the name of the reader, the encoder of the answer, and the writer of errors."""
