"""Whether an answer's text is split into reasoning, content and calls, and by what. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

from millrace_runtime.api.answer.message import Message, OpenMessage
from millrace_runtime.api.errors import BadRequestError
from millrace_runtime.api.request.intent import AnswerWish
from millrace_runtime.api.settings import ApiSettings
from millrace_runtime.chat.parsers.choose import list_markers, open_parser
from millrace_runtime.chat.tokenizer import Tokenizer

_OPENING_TOKENS = 16
"""`<think>` and line breaks may be so many tokens."""


class Split(NamedTuple):
    """What splits the text of a choice."""

    open_message: OpenMessage | None
    """None where the text can have neither reasoning nor calls in it."""
    markers: frozenset[str]
    """What it looks for."""


def plan_split(
    wish: AnswerWish, settings: ApiSettings, *, begins_in_reasoning: bool, has_grammar: bool
) -> Split:
    """Return what splits the answer. Raises BadRequestError for tools of a model that knows none.

    `begins_in_reasoning`: the prompt has opened the reasoning.
    """
    # A grammar binds the answer from its first token on, so there is no reasoning before it.
    splits_reasoning = settings.has_reasoning and wish.splits_reasoning and not has_grammar
    if wish.tools is None and not splits_reasoning:
        return Split(None, frozenset())
    if wish.tools is not None and settings.tool_format is None:
        raise BadRequestError(
            "this model's chat template knows no tools: leave `tools` out, or have the server started "
            "with --tool-parser",
            param="tools",
            code="unsupported_parameter",
        )
    tool_format = None if wish.tools is None else settings.tool_format

    def open_message() -> Message:
        parser = open_parser(
            tool_format,
            splits_reasoning=splits_reasoning,
            begins_in_reasoning=begins_in_reasoning,
            tools=wish.tools,
        )
        return Message(
            parser,
            shows_reasoning=wish.shows_reasoning,
            is_one_call=wish.is_one_call,
            is_short_id=tool_format == "mistral",
        )

    return Split(open_message, list_markers(tool_format, splits_reasoning=splits_reasoning))


def ends_in_reasoning(tokenizer: Tokenizer, prompt: Sequence[int]) -> bool:
    """Whether the prompt has opened the reasoning, which the answer continues."""
    end = b"".join(tokenizer.token_bytes(token) for token in prompt[-_OPENING_TOKENS:])
    return end.rstrip().endswith(b"<think>")
