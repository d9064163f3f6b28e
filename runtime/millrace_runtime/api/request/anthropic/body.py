"""Reads a body of POST /v1/messages: Anthropic's blocks become the messages that chat templates know."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from millrace_runtime.api.errors import BadRequestError
from millrace_runtime.api.request.anthropic.conversation import read_conversation
from millrace_runtime.api.request.anthropic.tools import ToolChoice, Tools, read_tools
from millrace_runtime.api.request.decoding import decode_body
from millrace_runtime.api.request.generation_request import AnswerWish, Reading, build_request
from millrace_runtime.api.request.openai_bodies import (
    MAX_STOPS,
    GenerationBody,
    Messages,
    Name,
    StopString,
    TokenCount,
)
from millrace_runtime.api.request.openai_bodies import Tools as ToolList
from millrace_runtime.api.request.reasoning import Effort, choose_variables
from millrace_runtime.api.request.structured_outputs import JsonSchema, ResponseFormat
from millrace_runtime.chat.jobs import RenderChat

_NOT_HERE: Mapping[str, str] = {
    "compaction": "ask for the summary in a message",
    "thread": "nothing is stored here, so send the whole conversation as `messages`",
}
"""Fields that would change the answer, and what a client may do instead."""


class Thinking(msgspec.Struct):
    """Whether the client wants to see the reasoning."""

    type: str


class OutputFormat(msgspec.Struct):
    """The form of the text."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct):
    """How the answer is written."""

    format: OutputFormat | None = None
    effort: Effort | None = None
    """How much the model reasons."""


class Ignored(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Fields that change no answer: who asks, what it may cost, and what Anthropic's servers alone have."""

    anthropic_beta: Any = None
    anthropic_version: Any = None
    betas: Any = None
    billing_policy: Any = None
    cache_control: Any = None
    container: Any = None
    context_management: Any = None
    diagnostics: Any = None
    fallback_credit_token: Any = None
    fallbacks: Any = None
    inference_geo: Any = None
    mcp_servers: Any = None
    metadata: Any = None
    service_tier: Any = None
    speed: Any = None
    user_profile_id: Any = None


class PromptBody(Ignored, kw_only=True):
    """The fields that make the prompt. POST /v1/messages/count_tokens takes only these."""

    model: Name | None = None
    messages: Messages
    system: str | list[dict[str, Any]] | None = None
    tools: ToolList | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    """The older place of `output_config.format`."""
    compaction: Any = None
    thread: Any = None
    """Refused: see _NOT_HERE."""

    @property
    def format_field(self) -> str:
        """The field that has the form of the text."""
        is_older = self.output_config is None or self.output_config.format is None
        return "output_format" if is_older else "output_config.format"

    @property
    def format(self) -> OutputFormat | None:
        """The form of the text; None: any."""
        wanted = None if self.output_config is None else self.output_config.format
        return self.output_format if wanted is None else wanted


class MessagesBody(PromptBody, kw_only=True):
    """POST /v1/messages."""

    max_tokens: TokenCount
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    stop_sequences: Annotated[list[StopString], Meta(max_length=MAX_STOPS)] | None = None
    stream: bool | None = None


def read_anthropic(data: bytes | bytearray) -> Reading:
    """Return the request and the prompt of a body of POST /v1/messages. Raises BadRequestError."""
    body = decode_body(data, MessagesBody)
    shared = GenerationBody(
        model=body.model,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        stop=body.stop_sequences,
        stream=body.stream,
        response_format=_read_format(body.format),
    )
    tools, choice = read_tools(body.tools, body.tool_choice), body.tool_choice
    answer = AnswerWish(
        is_chat=True,
        tools=tools.available,
        strict=tools.strict,
        forced=tools.forced,
        is_one_call=bool(choice and choice.disable_parallel_tool_use),
        splits_reasoning=True,
        # Clients that did not ask for it read the first block as the text.
        shows_reasoning=body.thinking is not None and body.thinking.type != "disabled",
    )
    request = build_request(shared, 1, body.max_tokens, body.max_tokens, None, answer=answer)
    return Reading(request.with_grammar_of(body.format_field), _plan_prompt(body, tools))


def read_anthropic_prompt(data: bytes | bytearray) -> Reading:
    """Return the prompt of a body of POST /v1/messages/count_tokens. Raises BadRequestError."""
    body = decode_body(data, PromptBody)
    request = build_request(GenerationBody(model=body.model), 1, 1, 1, None)
    return Reading(request, _plan_prompt(body, read_tools(body.tools, body.tool_choice)))


def _read_format(wanted: OutputFormat | None) -> ResponseFormat | None:
    return None if wanted is None else ResponseFormat("json_schema", JsonSchema(wanted.schema, strict=True))


def _plan_prompt(body: PromptBody, tools: Tools) -> RenderChat:
    for name, instead in _NOT_HERE.items():
        if getattr(body, name) is not None:
            raise BadRequestError(
                f"`{name}` is not supported by this server: {instead}",
                param=name,
                code="unsupported_parameter",
            )
    messages, is_continued = read_conversation(body.system, body.messages, tools.deferred)
    if is_continued and body.format is not None:
        raise BadRequestError(
            "the format binds a whole answer, and the last message has the beginning of one: leave out "
            "`output_config.format`, or end `messages` with one of the user",
            param="messages",
        )
    return RenderChat(
        messages=messages,
        tools=tools.loaded,
        variables=_choose_variables(body),
        add_generation_prompt=not is_continued,
        continue_final_message=is_continued,
        is_adaptable=True,
    )


def _choose_variables(body: PromptBody) -> dict[str, Any]:
    """Return the template's variables for the reasoning. `thinking` says whether, and the effort how much."""
    effort = None if body.output_config is None else body.output_config.effort
    return choose_variables(
        effort, thinks=None if body.thinking is None else body.thinking.type != "disabled"
    )
