"""The messages between the HTTP process and the text worker, one frame each."""

from typing import Any

import msgspec


class RenderChat(msgspec.Struct, frozen=True, array_like=True, tag="render"):
    """Render the chat template with these messages and tokenise the result: one prompt."""

    messages: list[dict[str, Any]]
    """As the client sent them."""
    tools: list[dict[str, Any]] | None = None
    documents: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    """Whether the prompt ends with the beginning of the assistant's answer."""
    continue_final_message: bool = False
    """Whether the model continues the last message; then no other is begun."""
    variables: dict[str, Any] = {}
    """More variables of the template, such as `enable_thinking`."""
    adds_special_tokens: bool = False
    """Whether the special tokens that the model puts around a prompt are added to those of the template."""
    is_cut: bool = False
    """Whether a prompt that is too long is cut, so that none is refused for its length."""
    is_adaptable: bool = False
    """Whether the messages come from another dialect: they may take another form for the template."""


class EncodeTexts(msgspec.Struct, frozen=True, array_like=True, tag="encode"):
    """Tokenise each text."""

    texts: list[str]
    adds_special_tokens: bool = True
    """Whether the special tokens that the model puts around a prompt are added."""
    is_cut: bool = False
    """Whether a text that is too long is cut, so that none is refused for its length."""


class ReadBody(msgspec.Struct, frozen=True, array_like=True, tag="body"):
    """Read a whole request, and tokenise its prompts. The worker needs a reader for it."""

    dialect: str
    """The reader's name."""
    body: bytes


class WorkerReady(msgspec.Struct, frozen=True, array_like=True, tag="ready"):
    """The worker's first message: tokenizer and template are loaded."""


class WorkerRefused(msgspec.Struct, frozen=True, array_like=True, tag="model"):
    """The worker's first message instead: the model's files are at fault, so no other start helps."""

    message: str


class Encoded(msgspec.Struct, frozen=True, array_like=True, tag="encoded"):
    """The answer to a job: each prompt's token ids, as `protocol/encoding.py` packs them."""

    prompts: list[bytes]
    request: bytes = b""
    """The body's request without its prompts, as the reader encoded it."""


class JobRefused(msgspec.Struct, frozen=True, array_like=True, tag="refused"):
    """The job is at fault: the template or the reader refused it, or a text is too long."""

    message: str
    param: str | None = None
    """Which part of a body is at fault."""
    code: str | None = None


class JobFailed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """The job failed, and the client did not cause it."""

    message: str


class MemoryExceeded(msgspec.Struct, frozen=True, array_like=True, tag="memory"):
    """The job hit the worker's memory limit."""


TextJob = RenderChat | EncodeTexts
AnyJob = TextJob | ReadBody


class ToTextWorker(msgspec.Struct, frozen=True, array_like=True):
    """A job, and the maximum length of a prompt."""

    job: AnyJob
    max_prompt_tokens: int | None
    """The worker refuses a text that surely has more, before it tokenises it; None: it refuses none."""


FromTextWorker = WorkerReady | WorkerRefused | Encoded | JobRefused | JobFailed | MemoryExceeded
