"""Refuses fields that would change the answer and that this server can't honour. None is silently ignored."""

from collections.abc import Callable
from typing import Any

from millrace_runtime.api.errors import BadRequestError
from millrace_runtime.api.request.schema import GenerationBody, Unsupported, UnsupportedInMessage

_Inert = Callable[[Any], bool]


def _is_one_of(*values: Any) -> _Inert:
    return lambda value: any(value is item or value == item for item in values)


def _is_text_format(value: Any) -> bool:
    return isinstance(value, dict) and value.get("type") == "text"


_INERT: dict[str, _Inert] = {
    "add_generation_prompt": lambda value: value is True,
    "bad_words": _is_one_of([]),
    "chat_template_kwargs": _is_one_of({}),
    "continue_final_message": lambda value: value is False,
    "documents": _is_one_of([]),
    "early_stopping": lambda value: value is False,
    "echo": lambda value: value is False,
    "function_call": _is_one_of("none", "auto"),
    "functions": _is_one_of([]),
    "include_stop_str_in_output": lambda value: value is False,
    "length_penalty": _is_one_of(1),
    "logit_bias": _is_one_of({}),
    "logits_processors": _is_one_of([]),
    "min_tokens": _is_one_of(0),
    "mm_processor_kwargs": _is_one_of({}),
    "modalities": _is_one_of(["text"]),
    "reasoning_effort": _is_one_of("none"),
    "repetition_penalty": _is_one_of(1),
    "response_format": _is_text_format,
    "return_token_ids": lambda value: value is False,
    "return_tokens_as_token_ids": lambda value: value is False,
    "skip_special_tokens": lambda value: value is True,
    "suffix": _is_one_of(""),
    "tool_choice": _is_one_of("none", "auto"),
    "tools": _is_one_of([]),
    "use_beam_search": lambda value: value is False,
    "verbosity": _is_one_of("medium"),
    "vllm_xargs": _is_one_of({}),
}
"""Values that ask for nothing, which clients send as defaults. null asks for nothing in every known field."""


def refuse_unsupported(body: GenerationBody, num_choices: int, *, adds_special_tokens: bool) -> None:
    """Raise BadRequestError for the first field that asks for what is not supported.

    `adds_special_tokens` is what this endpoint does, and what `add_special_tokens` may therefore ask for.
    """
    inert = _INERT | {
        "best_of": _is_one_of(1, num_choices),
        "add_special_tokens": lambda value: value is adds_special_tokens,
    }
    for name in Unsupported.__annotations__:
        value = getattr(body, name)
        if value is not None and not inert.get(name, lambda _: False)(value):
            raise _unsupported(name, name)
    options = body.stream_options
    if options is not None and options.continuous_usage_stats:
        raise _unsupported("continuous_usage_stats", "stream_options.continuous_usage_stats")


def refuse_in_message(message: UnsupportedInMessage, where: str) -> None:
    """Raise BadRequestError for the first field of a message that has a value and is not supported."""
    for name in UnsupportedInMessage.__struct_fields__:
        if getattr(message, name):
            raise _unsupported(name, f"{where}.{name}")


def _unsupported(name: str, param: str) -> BadRequestError:
    return BadRequestError(
        f"`{name}` is not supported by this server: leave it out", param=param, code="unsupported_parameter"
    )
