"""What splits an answer's text into reasoning, content and calls. Pure."""

from millrace_runtime.api.answer.message import Message, OpenMessage
from millrace_runtime.api.request.answer_form import AnswerForm, Reasoning
from millrace_runtime.api.request.intent import AnswerWish
from millrace_runtime.chat.parsers.choose import open_parser


def open_messages(wish: AnswerWish, form: AnswerForm) -> OpenMessage | None:
    """Return what opens the splitter of a choice's text; None where all of it is content."""
    if form.is_plain:
        return None

    def open_message() -> Message:
        parser = open_parser(
            *form.formats, begins_in_reasoning=form.reasoning is Reasoning.OPEN, tools=wish.tools
        )
        return Message(
            parser,
            shows_reasoning=wish.shows_reasoning,
            is_one_call=wish.is_one_call,
            is_short_id=form.tool_format == "mistral",
        )

    return open_message
