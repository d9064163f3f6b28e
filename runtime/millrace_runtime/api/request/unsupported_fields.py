"""Refuses the fields of a body that would change the answer and that this server does not support. Pure."""

from collections.abc import Callable, Mapping
from typing import Any

from millrace_runtime.api.errors import BadRequestError
from millrace_runtime.api.request.openai_bodies import GenerationBody, Unsupported

_Inert = Callable[[Any], bool]


def _is_one_of(*values: Any) -> _Inert:
    return lambda value: any(value is item or value == item for item in values)


def _is_false(value: Any) -> bool:
    return value is False


_INERT: Mapping[str, _Inert] = {
    "add_generation_prompt": lambda value: value is True,
    "chat_template_kwargs": _is_one_of({}),
    "continue_final_message": _is_false,
    "documents": _is_one_of([]),
    "early_stopping": _is_false,
    "echo": _is_false,
    "function_call": _is_one_of("none", "auto"),
    "functions": _is_one_of([]),
    "length_penalty": _is_one_of(1),
    "logits_processors": _is_one_of([]),
    "media_io_kwargs": _is_one_of({}),
    "mm_processor_kwargs": _is_one_of({}),
    "modalities": _is_one_of(["text"]),
    "return_prompt_text": _is_false,
    "suffix": _is_one_of(""),
    "thinking_token_budget": _is_one_of(-1),
    "tool_choice": _is_one_of("none", "auto"),
    "tools": _is_one_of([]),
    "use_beam_search": _is_false,
    "vllm_xargs": _is_one_of({}),
}
"""Defaults that clients send and that change nothing. null changes nothing in any known field."""

_OF_CHATS = "it is a field of /v1/chat/completions"
_OF_TEXT = "this server reads and writes text alone"
_OF_BEAMS = "this server has no beam search: ask for several choices by `n`"
_INSTEAD: Mapping[str, str] = {
    "add_generation_prompt": _OF_CHATS,
    "audio": _OF_TEXT,
    "chat_template": "chats use the model's own template, and `chat_template_kwargs` are its variables",
    "chat_template_kwargs": _OF_CHATS,
    "continue_final_message": _OF_CHATS,
    "documents": _OF_CHATS,
    "early_stopping": _OF_BEAMS,
    "enable_thinking": _OF_CHATS,
    "echo": "it is a field of /v1/completions; in chats ask for `prompt_logprobs`",
    "function_call": "send `tool_choice`",
    "functions": "send `tools`",
    "guided_whitespace_pattern": "write it into a `structured_outputs.grammar`",
    "length_penalty": _OF_BEAMS,
    "logits_processors": "send `logit_bias`, `allowed_token_ids` or `bad_words`",
    "logprob_token_ids": "ask for the most likely tokens by `logprobs`",
    "media_io_kwargs": _OF_TEXT,
    "mm_processor_kwargs": _OF_TEXT,
    "modalities": _OF_TEXT,
    "moderation": "let a model of your own judge the texts",
    "prompt_embeds": "send `prompt`",
    "reasoning": _OF_CHATS,
    "reasoning_effort": _OF_CHATS,
    "repetition_detection": "send `repetition_penalty` or `frequency_penalty`",
    "return_prompt_text": "/tokenize and /detokenize have the prompt",
    "structural_tag": "send `structured_outputs`",
    "suffix": "write both sides into `prompt`, with the model's own tokens around them",
    "thinking": _OF_CHATS,
    "thinking_token_budget": "bound the answer by `max_tokens`, or send `reasoning_effort`",
    "tool_choice": _OF_CHATS,
    "tools": _OF_CHATS,
    "use_beam_search": _OF_BEAMS,
    "web_search_options": "give the model a tool that searches",
}
"""The alternatives of a client. The other fields have none."""


def refuse_unsupported(body: GenerationBody) -> None:
    """Raise BadRequestError for the first field with an unsupported value."""
    for name in Unsupported.__annotations__.keys() - type(body).__annotations__.keys():
        value = getattr(body, name)
        if value is not None and not _INERT.get(name, lambda _: False)(value):
            raise build_refusal(name)


def build_refusal(name: str) -> BadRequestError:
    """Return the refusal of a field, which says what a client may do instead."""
    return BadRequestError(
        f"`{name}` is not supported by this server: {_INSTEAD.get(name, 'leave it out')}",
        param=name,
        code="unsupported_parameter",
    )
