"""The replica's HTTP application, and its description of the replica."""

import importlib.metadata
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated, Any

import msgspec
from fastapi import FastAPI, Query, Response, WebSocket
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from millrace_runtime import contract
from millrace_runtime.api.connection.middleware import CorsLayer, StateLayer, TokenLayer
from millrace_runtime.api.dialects import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from millrace_runtime.api.engine_client import EngineClient
from millrace_runtime.api.errors import BadRequestError
from millrace_runtime.api.exchange import Exchange
from millrace_runtime.api.openapi import DescribedApi
from millrace_runtime.api.prompt_exchange import PromptExchange
from millrace_runtime.api.replica_state import ReplicaState
from millrace_runtime.api.settings import ApiSettings
from millrace_runtime.api.stream_socket import StreamSocket
from millrace_runtime.api.workers.grammar_worker import GrammarWorker
from millrace_runtime.chat.tokenizer import Tokenizer
from millrace_runtime.chat.worker import TextWorker
from millrace_runtime.cors import CorsPolicy
from millrace_runtime.protocol.messages import EngineReady

_LONGEST_WAIT_SECONDS = 60
_SPECIAL_TOKENS = frozenset(f"{role}_token" for role in ("bos", "cls", "eos", "mask", "pad", "sep", "unk"))
"""Of a tokenizer's config, which may have other fields of such names."""
_NOT_READY: dict[int | str, dict[str, Any]] = {503: {"description": "Not ready; `status` says why."}}


def create_app(
    engine: EngineClient,
    text: TextWorker,
    grammars: GrammarWorker,
    tokenizer: Tokenizer,
    settings: ApiSettings,
) -> FastAPI:
    """Return the application. It is ready once the engine and the text worker have started.

    `app.state.replica` is its ReplicaState.
    """
    replica = ReplicaState(engine, text, grammars, tokenizer, settings)
    version = importlib.metadata.version("millrace")
    app = DescribedApi(
        title="Millrace",
        version=version,
        lifespan=_lifespan_of(replica),
        redirect_slashes=False,
        docs_url=None,  # its page loads scripts from the internet
        redoc_url=None,
    )
    app.state.replica = replica
    _add_layers(app, replica)
    app.add_exception_handler(HTTPException, _answer_http_error)
    _add_generation(app, replica)
    _add_stream(app, replica)
    _add_models(app, replica)
    _add_health(app, replica)
    _add_metrics(app, replica)
    return app


def _add_layers(app: FastAPI, replica: ReplicaState) -> None:
    """Add what surrounds every path, the innermost first."""
    settings = replica.settings
    app.add_middleware(StateLayer, replica=replica)
    if settings.allowed_origins:
        app.add_middleware(CorsLayer, policy=CorsPolicy(settings.allowed_origins))
    if settings.gateway_keys:
        from millrace_runtime.gateway_token import TokenVerifier  # noqa: PLC0415  loads cryptography

        app.add_middleware(TokenLayer, verifier=TokenVerifier(settings.service or "", settings.gateway_keys))


def _lifespan_of(replica: ReplicaState) -> Any:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        replica.start()
        try:
            yield
        finally:
            await replica.close()

    return lifespan


class _ExchangeResponse(Response):
    """Runs the whole exchange itself, so that FastAPI parses no body and wraps no chunk."""

    def __init__(self, open_exchange: Callable[[Scope, Receive, Send], Exchange | PromptExchange]) -> None:
        super().__init__()
        self._open_exchange = open_exchange

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._open_exchange(scope, receive, send).run()


def _add_generation(app: FastAPI, replica: ReplicaState) -> None:
    @app.post(contract.PATH_COMPLETIONS)
    async def create_completion() -> Response:
        """Continue a prompt."""
        return _ExchangeResponse(partial(Exchange, replica, COMPLETIONS))

    @app.post(contract.PATH_CHAT_COMPLETIONS)
    async def create_chat_completion() -> Response:
        """Answer a conversation."""
        return _ExchangeResponse(partial(Exchange, replica, CHAT))

    @app.post(contract.PATH_RESPONSES)
    async def create_response() -> Response:
        """Answer a conversation, in OpenAI's newer dialect."""
        return _ExchangeResponse(partial(Exchange, replica, RESPONSES))

    @app.post(contract.PATH_MESSAGES)
    async def create_message() -> Response:
        """Answer a conversation, in Anthropic's dialect."""
        return _ExchangeResponse(partial(Exchange, replica, MESSAGES))

    @app.post(contract.PATH_COUNT_TOKENS)
    @app.post(contract.PATH_TOKENIZE)
    @app.post(contract.PATH_DETOKENIZE)
    async def tokenize(request: Request) -> Response:
        """Tokenise a prompt, or the reverse; no model answers."""
        return _ExchangeResponse(partial(PromptExchange, replica, request.url.path))


def _add_stream(app: FastAPI, replica: ReplicaState) -> None:
    @app.websocket(contract.PATH_STREAM)
    async def stream(socket: WebSocket) -> None:
        """Answer many requests in one connection."""
        await StreamSocket(replica, socket).serve()


def _add_models(app: FastAPI, replica: ReplicaState) -> None:
    created = int(time.time())

    def describe() -> dict[str, Any]:
        ready = replica.engine.ready
        return {
            "id": replica.settings.served_name,
            "object": "model",
            "created": created,
            "owned_by": "millrace",
            "root": replica.settings.served_name,  # vLLM's clients call the model by it
            "parent": None,
            "default_sampling": msgspec.to_builtins(replica.settings.author_defaults) or {},
            "max_model_len": ready.max_model_length if ready else None,
            "replica": describe_replica(ready) if ready else None,
        }

    @app.get("/v1/models")
    async def list_models() -> JSONResponse:
        """List the one model that is served."""
        return JSONResponse({"object": "list", "data": [describe()]})

    @app.get("/v1/models/{model:path}", responses={404: {"description": "Another model is served here."}})
    async def get_model(model: str) -> JSONResponse:
        """Describe the model that is served."""
        if model != replica.settings.served_name:
            raise HTTPException(
                404, f"the model `{model}` is not served here: use `{replica.settings.served_name}`"
            )
        return JSONResponse(describe())

    @app.get("/tokenizer_info")
    async def describe_tokenizer() -> JSONResponse:
        """Return the special tokens by their roles, and the chat template.

        lm-eval asks for it: with it, and with /tokenize, it needs no tokenizer's files of its own.
        """
        config = replica.tokenizer.config
        known = {name: text for name, text in config.special_tokens.items() if name in _SPECIAL_TOKENS}
        return JSONResponse(known | {"chat_template": config.chat_templates.get("default")})


def _add_health(app: FastAPI, replica: ReplicaState) -> None:
    @app.get("/health", responses=_NOT_READY)
    @app.get(contract.PATH_READY, responses=_NOT_READY)
    async def ready(wait: Annotated[float, Query(ge=0, le=_LONGEST_WAIT_SECONDS)] = 0.0) -> JSONResponse:
        """Answer 200 with a description while the replica accepts requests, else 503 with the reason.

        vLLM's clients call it /health. While the replica starts, the answer waits for up to `wait` seconds.
        """
        await replica.wait_started(wait)
        why, ready = replica.why_not_ready, replica.engine.ready
        if why is not None or ready is None:
            return JSONResponse({"status": why}, 503)
        return JSONResponse({"status": "ready", "replica": describe_replica(ready)})

    @app.get(contract.PATH_LOAD)
    async def load() -> JSONResponse:
        """Return how many requests are in flight, and how much the engine has to do."""
        load = replica.read_load()
        return JSONResponse(
            {
                "server_load": replica.num_requests,
                "waiting": load.num_waiting,
                "running": load.num_running,
                "max_sequences": load.max_sequences,
                "kv_usage": round(load.kv_usage, 3),
            }
        )

    @app.get("/version")
    async def version() -> JSONResponse:
        """Return the server's version."""
        return JSONResponse({"version": app.version})


def _add_metrics(app: FastAPI, replica: ReplicaState) -> None:
    registry = CollectorRegistry()
    registry.register(replica.metrics)

    @app.get(contract.PATH_METRICS, response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Return the present value of every metric."""
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


async def _answer_http_error(request: Request, error: Exception) -> Response:
    """Return an error of the framework, such as an unknown path, in OpenAI's shape."""
    status, message = (
        (error.status_code, error.detail) if isinstance(error, HTTPException) else (500, "failed")
    )
    if message in ("Not Found", "Method Not Allowed"):
        message = f"{message}: {request.method} {request.url.path}"
    return Response(BadRequestError(message).encode(), status, media_type="application/json")


Description = dict[str, str | int]


def describe_replica(ready: EngineReady) -> Description:
    """Return the replica's device, number types and limits."""
    return {
        **msgspec.structs.asdict(ready.placement),
        "kv_cache_tokens": ready.kv_tokens,
        "kv_cache_blocks": ready.num_blocks,
        "block_size": ready.block_size,
        "max_model_length": ready.max_model_length,
        "max_sequences": ready.max_sequences,
    }
