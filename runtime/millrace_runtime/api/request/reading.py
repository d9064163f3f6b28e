"""Reads a body into a request, which is the same for every dialect, and its prompts.

Pure, so that the text worker can read large bodies.
"""

import dataclasses
import random
import re
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, TypeVar

import msgspec

from millrace_runtime.api.errors import BadRequestError
from millrace_runtime.api.request.messages import MAX_SCHEMA_DEPTH, check_depth, read_messages
from millrace_runtime.api.request.schema import (
    MAX_SEQUENCES,
    ChatBody,
    CompletionBody,
    GenerationBody,
    NamedTool,
    Tool,
    refuse_unsupported,
)
from millrace_runtime.api.request.structured import read_grammar
from millrace_runtime.chat.jobs import EncodeTexts, RenderChat, TextJob
from millrace_runtime.chat.model_files import AuthorDefaults
from millrace_runtime.grammar.source import GrammarSource
from millrace_runtime.protocol.sampling import Sampling

Body = TypeVar("Body", bound=msgspec.Struct)
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
"""msgspec's message."""
_MAX_NAME = 64
_AUTHORS = ("temperature", "top_p", "top_k", "min_p")
"""Fields of a request for which a model's author may recommend a value."""
_SEED_BITS = 63
_SEED_MASK = (1 << _SEED_BITS) - 1
_COMPLETION_TOKENS = 16
"""OpenAI's default."""
_CHAT_TOKENS = 2**31 - 1
"""As many as fit."""


@dataclass(frozen=True)
class AnswerWish:
    """What a chat's answer is split into."""

    tools: list[dict[str, Any]] | None = None
    """The tools that the model may call, as the client sent them; None: none."""
    is_one_call: bool = False
    """Whether only the first call counts."""
    splits_reasoning: bool = False
    """Whether reasoning is no part of the content."""
    shows_reasoning: bool = True
    """Whether the client gets the reasoning."""


@dataclass(frozen=True)
class GenerationRequest:
    """A validated request without its prompts."""

    num_prompts: int
    model: str | None
    num_choices: int
    max_tokens: int | None
    """None if the client sets no limit."""
    default_max_tokens: int
    """The limit for a client that sets none. The model's length may leave room for fewer."""
    sampling: Sampling
    """Its seed is ignored: each sequence gets its own from `seed_of`."""
    unset: tuple[str, ...]
    """Fields of `sampling` of which the client says nothing: the model's author may."""
    answer: AnswerWish
    seed: int | None
    stops: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    ignores_end: bool
    is_streaming: bool
    keeps_stop: bool
    """Whether the stop string or token that ended the text is its end."""
    hides_special: bool
    """Whether special tokens are left out of the text."""
    includes_usage: bool
    """Whether a stream's last chunk has the usage."""
    includes_usage_so_far: bool
    """Whether each chunk has the usage so far."""
    grammar: GrammarSource | None = None
    """What the text must fit."""

    @property
    def num_sequences(self) -> int:
        """Choices of all prompts."""
        return self.num_prompts * self.num_choices

    def with_defaults(self, defaults: AuthorDefaults) -> "GenerationRequest":
        """Return the request with what the model's author recommends, where the client says nothing."""
        said = {name: value for name in self.unset if (value := getattr(defaults, name)) is not None}
        most = defaults.max_new_tokens or self.default_max_tokens
        return dataclasses.replace(
            self,
            sampling=_build_sampling(msgspec.structs.asdict(self.sampling) | said),
            default_max_tokens=min(self.default_max_tokens, most),
        )

    def seed_of(self, choice: int) -> int:
        """Return the seed of a prompt's choice: the client's plus the choice's number, or a random one."""
        if self.seed is None:
            return random.getrandbits(_SEED_BITS)
        return (self.seed + choice) & _SEED_MASK


class Reading(NamedTuple):
    """A body's request and its prompts."""

    request: GenerationRequest
    prompts: TextJob | list[list[int]]
    """A job for the text worker, or token ids."""


def read_completion(data: bytes | bytearray) -> Reading:
    """Return the request and the prompts of a body of POST /v1/completions. Raises BadRequestError."""
    body = decode_body(data, CompletionBody)
    refuse_unsupported(body, body.n or 1, adds_special_tokens=True)
    prompts, num_prompts = _read_prompts(body.prompt)
    request = build_request(body, num_prompts, body.max_tokens, _COMPLETION_TOKENS, body.logprobs)
    return Reading(request, prompts)


def _read_prompts(prompt: str | list[Any]) -> tuple[TextJob | list[list[int]], int]:
    if isinstance(prompt, str):
        return EncodeTexts([prompt]), 1
    kinds = {type(item) for item in prompt}
    if kinds == {int}:
        return [prompt], 1
    if len(kinds) > 1:
        raise BadRequestError("`prompt` mixes strings and token ids: send one kind", param="prompt")
    if len(prompt) > MAX_SEQUENCES:
        raise BadRequestError(
            f"`prompt` has {len(prompt)} items, and the limit is {MAX_SEQUENCES}", param="prompt"
        )
    return (EncodeTexts(prompt) if kinds == {str} else prompt), len(prompt)


def read_chat(data: bytes | bytearray) -> Reading:
    """Return the request and the prompt of a body of POST /v1/chat/completions. Raises BadRequestError."""
    body = decode_body(data, ChatBody)
    refuse_unsupported(body, body.n or 1, adds_special_tokens=False)
    if body.top_logprobs and not body.logprobs:
        raise BadRequestError("`top_logprobs` needs `logprobs: true`", param="top_logprobs")
    max_tokens = body.max_completion_tokens or body.max_tokens
    num_logprobs = (body.top_logprobs or 0) if body.logprobs else None
    tools = _read_tools(body)
    answer = AnswerWish(
        tools=tools,
        is_one_call=body.parallel_tool_calls is False,
        splits_reasoning=body.separate_reasoning is not False,
        shows_reasoning=body.include_reasoning is not False,
    )
    request = build_request(body, 1, max_tokens, _CHAT_TOKENS, num_logprobs, answer=answer)
    return Reading(request, _read_conversation(body, tools))


def _read_tools(body: ChatBody) -> list[dict[str, Any]] | None:
    """Return the tools that the model may call, or None. Raises BadRequestError naming what is wrong."""
    choice = body.tool_choice
    if not body.tools:
        if choice not in (None, "none", "auto"):
            raise BadRequestError("`tool_choice` needs `tools`", param="tool_choice")
        return None
    check_depth(body.tools, "tools", MAX_SCHEMA_DEPTH)
    try:
        names = [tool.function.name for tool in msgspec.convert(body.tools, list[Tool])]
    except msgspec.ValidationError as error:
        raise _refuse_invalid(str(error).replace("`$", "`$.tools")) from error
    if isinstance(choice, NamedTool) and choice.function.name not in names:
        raise BadRequestError(
            f"`tool_choice` names `{choice.function.name}`, and the tools are {names}", param="tool_choice"
        )
    if isinstance(choice, NamedTool) or choice == "required":
        refuse_choice()
    return None if choice == "none" else body.tools


def refuse_choice() -> NoReturn:
    """Raise BadRequestError for a `tool_choice` that forces a call."""
    raise BadRequestError(
        "`tool_choice` is not supported with this value: use `auto` or `none`",
        param="tool_choice",
        code="unsupported_parameter",
    )


def _read_conversation(body: ChatBody, tools: list[dict[str, Any]] | None) -> RenderChat:
    if body.continue_final_message and body.add_generation_prompt:
        raise BadRequestError(
            "`continue_final_message` and `add_generation_prompt` exclude each other: send one",
            param="continue_final_message",
        )
    check_depth(body.chat_template_kwargs, "chat_template_kwargs")
    check_depth(body.documents, "documents")
    return RenderChat(
        messages=read_messages(body.messages),
        tools=tools,
        documents=body.documents,
        add_generation_prompt=body.add_generation_prompt is not False,
        continue_final_message=bool(body.continue_final_message),
        variables=body.chat_template_kwargs or {},
    )


def decode_body(data: bytes | bytearray, body_type: type[Body]) -> Body:
    """Return the request body as `body_type`. Raises BadRequestError naming the field."""
    try:
        return msgspec.json.decode(data, type=body_type)
    except msgspec.ValidationError as error:
        raise _refuse_invalid(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequestError(f"the body is not JSON that can be read: {error}") from error


def _refuse_invalid(text: str) -> BadRequestError:
    """Return the refusal for msgspec's message, with the field as `param`."""
    message, _, path = text.partition(" - at `$")
    path = path.rstrip("`").removeprefix(".")
    if unknown := _UNKNOWN_FIELD.fullmatch(message):
        name = unknown[1][:_MAX_NAME]
        return BadRequestError(
            f"`{name}` is not known to this server: leave it out",
            param=f"{path}.{name}" if path else name,
            code="unknown_parameter",
        )
    return BadRequestError(f"{message} - in `{path}`" if path else message, param=path or None)


def build_request(
    body: GenerationBody,
    num_prompts: int,
    max_tokens: int | None,
    default_max_tokens: int,
    num_logprobs: int | None,
    *,
    answer: AnswerWish = AnswerWish(),
) -> GenerationRequest:
    """Return the request of a decoded body. Raises BadRequestError for too many sequences and the like."""
    num_choices = body.n or 1
    if num_prompts * num_choices > MAX_SEQUENCES:
        raise BadRequestError(
            f"{num_prompts} prompts with {num_choices} choices each are more than {MAX_SEQUENCES} sequences: "
            "split the request",
            param="prompt",
        )
    options = body.stream_options
    includes_usage = bool(options and options.include_usage)
    if includes_usage and not body.stream:
        raise BadRequestError("`stream_options` needs `stream: true`", param="stream_options")
    return GenerationRequest(
        num_prompts=num_prompts,
        model=body.model,
        num_choices=num_choices,
        max_tokens=max_tokens,
        default_max_tokens=default_max_tokens,
        sampling=_sampling(body, num_logprobs),
        unset=tuple(name for name in _AUTHORS if getattr(body, name) is None),
        answer=answer,
        seed=body.seed,
        stops=(body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ()),
        stop_token_ids=tuple(body.stop_token_ids or ()),
        ignores_end=bool(body.ignore_eos),
        is_streaming=bool(body.stream),
        keeps_stop=bool(body.include_stop_str_in_output),
        hides_special=body.skip_special_tokens is not False,
        includes_usage=includes_usage,
        includes_usage_so_far=includes_usage and bool(options and options.continuous_usage_stats),
        grammar=read_grammar(body),
    )


def _sampling(body: GenerationBody, num_logprobs: int | None) -> Sampling:
    said = {
        name: value
        for name in ("temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty")
        if (value := getattr(body, name)) is not None
    }
    return _build_sampling(said | {"num_logprobs": num_logprobs})


def _build_sampling(fields: dict[str, Any]) -> Sampling:
    """Return the sampling with what clients write in several ways in one."""
    if fields.get("top_p") == 0:  # of the smallest set of tokens, at least one is left: the most likely one
        fields = fields | {"temperature": 0.0, "top_p": 1.0}
    return Sampling(**fields | {"top_k": max(0, fields.get("top_k", 0))})


def encode_request(request: GenerationRequest) -> bytes:
    """Return the request in MessagePack."""
    return msgspec.msgpack.encode(request)


def decode_request(data: bytes) -> GenerationRequest:
    """Return the request that `encode_request` encoded."""
    return msgspec.msgpack.decode(data, type=GenerationRequest)
