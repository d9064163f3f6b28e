"""Refuses fields that would change the answer and that this server can't honour: never silently ignored."""

from collections.abc import Callable
from typing import Any

from millrace_runtime.api.errors import BadRequestError
from millrace_runtime.api.schema import Unsupported

_Inert = Callable[[Any], bool]


def _is_one_of(*values: Any) -> _Inert:
    return lambda value: any(value is item or value == item for item in values)


def _is_text_format(value: Any) -> bool:
    return isinstance(value, dict) and value.get("type") == "text"


_INERT: dict[str, _Inert] = {
    "best_of": lambda value: value == 1,
    "logit_bias": _is_one_of({}),
    "suffix": _is_one_of(""),
    "echo": lambda value: value is False,
    "tools": _is_one_of([]),
    "tool_choice": _is_one_of("none", "auto"),
    "functions": _is_one_of([]),
    "function_call": _is_one_of("none", "auto"),
    "response_format": _is_text_format,
    "modalities": _is_one_of(["text"]),
    "chat_template_kwargs": _is_one_of({}),
    "documents": _is_one_of([]),
    "add_generation_prompt": lambda value: value is True,
    "continue_final_message": lambda value: value is False,
    "min_tokens": _is_one_of(0),
    "repetition_penalty": _is_one_of(1),
    "use_beam_search": lambda value: value is False,
}
"""Values that ask for nothing, which clients send as defaults. null is always one."""


def refuse_unsupported(body: Unsupported, num_choices: int) -> None:
    """Raise BadRequestError for the first field that asks for what is not supported."""
    for name in Unsupported.__struct_fields__:
        value = getattr(body, name)
        if value is None or (name == "best_of" and value == num_choices):
            continue
        if not _INERT.get(name, lambda _: False)(value):
            raise BadRequestError(
                f"`{name}` is not supported by this server: leave it out",
                param=name,
                code="unsupported_parameter",
            )
