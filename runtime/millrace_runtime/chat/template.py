"""Chat templates turn messages into a prompt's text, as transformers' `apply_chat_template` does.

Jinja's sandbox bounds what a template can reach, not how long it runs: call it in the text worker.
"""

import re
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import jinja2
import msgspec

from millrace_runtime.chat.adaptation import (
    REASONING_FIELDS,
    find_tools_field,
    has_thoughts,
    list_forms,
    move_system,
    put_tools,
    read_text,
    write_thoughts,
)
from millrace_runtime.chat.call_form import find_call_form
from millrace_runtime.chat.errors import BrokenTemplateError, TemplateError
from millrace_runtime.chat.jinja_environment import RefusedError, build_environment
from millrace_runtime.chat.jobs import RenderChat

_PROBE, _SECOND_PROBE = "0d7f1c", "7c21e9"
_ASKED = {"role": "user", "content": "?"}
_CALL = {"id": "0" * 9, "type": "function", "function": {"name": "f", "arguments": {}}}
_CALLED = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
_RESULT = {"role": "tool", "tool_call_id": _CALL["id"], "name": "f", "content": "!"}
_BEFORE_AND_BEHIND: Mapping[str, tuple[Sequence[dict[str, Any]], Sequence[dict[str, Any]]]] = {
    "user": ((), ()),
    "system": ((), (_ASKED,)),
    "assistant": ((_ASKED,), (_ASKED,)),
    "tool": ((_ASKED, _CALLED), ()),
}
"""The messages around one of parts, by its role: a template may read some roles' parts, and print others'."""
_FOR_TOOLS = "tool_use"
_NO_PARAMETERS = {"parameters": {"type": "object", "properties": {}}}
_TOOLS = [{"type": "function", "function": {"name": "f", "description": "", **_NO_PARAMETERS}}]
_CONTINUED = "CONTINUED_TEXT_ENDS_HERE "
"""Marks the end of a message that the model continues. The space shows whether the template strips."""
_OWN_VARIABLES = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
_DEVELOPER = re.compile(r"""(['"])developer\1""")
"""The role as a template names it."""


class ChatTemplate:
    """A model's compiled chat templates with the variables of its tokenizer."""

    def __init__(self, sources: Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        """Compile the sources, by name: "default", perhaps "tool_use".

        Raises BrokenTemplateError for one that does not compile, or that can't render one message.
        """
        self._special_tokens = special_tokens
        self._templates = {
            name: _NamedTemplate(source, special_tokens, _TOOLS if name == _FOR_TOOLS else None)
            for name, source in sources.items()
        }

    def render(self, chat: RenderChat) -> str:
        """Return the prompt's text.

        Raises TemplateError where the template refuses the messages (`raise_exception`) or the chat asks too
        much of every template, and BrokenTemplateError for any other failure of the template.
        """
        _refuse_variables(chat.variables)
        template = self._choose(chat)
        try:
            return _render_some_form(template, chat)
        except BrokenTemplateError as error:
            if (whole := _write_parameters(chat)) != chat:
                with suppress(BrokenTemplateError):
                    return _render_some_form(template, whole)
            if chat.variables and _renders(template, msgspec.structs.replace(chat, variables={})):
                raise TemplateError(f"with these `chat_template_kwargs` {error}") from error
            raise

    def _choose(self, chat: RenderChat) -> "_NamedTemplate":
        wanted = _FOR_TOOLS if chat.tools is not None and _FOR_TOOLS in self._templates else "default"
        try:
            return self._templates[wanted]
        except KeyError:
            raise TemplateError(
                f"this model's chat templates are {sorted(self._templates)}, and none of them is `default`"
            ) from None


def _render_some_form(template: "_NamedTemplate", chat: RenderChat) -> str:
    """Return the prompt of the messages as they are or, if the template refuses them, in another form."""
    try:
        return template.render(chat)
    except TemplateError:
        for messages in list_forms(chat.messages, may_join=chat.is_adaptable):
            with suppress(TemplateError, BrokenTemplateError):
                return template.render(msgspec.structs.replace(chat, messages=list(messages)))
        raise


def _write_parameters(chat: RenderChat) -> RenderChat:
    """Return the chat with `parameters` for each function: clients leave them out where there are none."""
    tools = [
        tool | {"function": tool["function"] | _NO_PARAMETERS}
        if "function" in tool and tool["function"].get("parameters") is None
        else tool
        for tool in chat.tools or ()
    ]
    return msgspec.structs.replace(chat, tools=tools or None)


def _renders(template: "_NamedTemplate", chat: RenderChat) -> bool:
    try:
        template.render(chat)
    except (TemplateError, BrokenTemplateError):
        return False
    return True


class _NamedTemplate:
    """One compiled template, and what it makes of messages."""

    def __init__(
        self, source: str, special_tokens: Mapping[str, str], tools: list[Any] | None = None
    ) -> None:
        """A template that is only for chats with tools is tried with these."""
        environment = build_environment()
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise BrokenTemplateError(
                f"line {error.lineno} of the model's chat template does not compile: {error}"
            ) from error
        except Exception as error:  # Python's compiler refuses what is nested too deep
            raise BrokenTemplateError(f"the model's chat template does not compile: {error}") from error
        self._source = source
        self._special_tokens = special_tokens
        self._names_developer = _DEVELOPER.search(source) is not None
        self._tried = RenderChat([], tools=tools)
        failure, reads_text = self._try_text()
        two = (_PROBE, _SECOND_PROBE)
        self._takes_parts = frozenset(role for role in _BEFORE_AND_BEHIND if self._reads_parts(role, *two))
        """The roles whose content may be a list of parts."""
        self._takes_thoughts = frozenset(
            role for role in ("system", "assistant") if self._reads_thoughts(role)
        )
        """The roles of which a part may be of type `thinking`."""
        self._needs_parts = not reads_text and self._reads_parts("user", _PROBE)
        """Whether its messages' content is a list of parts, even where a client sends text."""
        if failure is not None and not self._needs_parts:
            raise failure
        self._call_form = find_call_form(lambda messages: self._run(messages, self._tried), source)
        self._tools_field = find_tools_field(
            lambda messages, tools: self._run(messages, RenderChat([], tools=tools)), source
        )
        """How tools are written where the template reads them in the system's message; else None."""
        self._loses_system = self._writes_system() and not self._writes_system(_CALLED, _RESULT)
        """Whether a system's text is missing behind a tool's result, as in the template of Mistral's Nemo.
        Mistral's own library has it in the user's last message."""

    def render(self, chat: RenderChat) -> str:
        messages = self._prepare_all(chat.messages)
        if chat.tools and self._tools_field is not None:
            messages = put_tools(messages, chat.tools, self._tools_field)
        if self._loses_system:
            messages = move_system(messages)
        if not chat.continue_final_message:
            return self._run(messages, chat)
        field, text = _mark_end(messages[-1])
        if field not in self._source:
            raise TemplateError("`continue_final_message`: this model's chat template reads no `content`")
        return _cut_at_mark(self._run(messages, chat), text)

    def _prepare_all(self, messages: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
        return [one for message in messages for one in self._prepare(message)]

    def _prepare(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the message as the template reads it: without nulls, its reasoning under each name.

        Of a text and calls it may be two.
        """
        prepared = {key: value for key, value in message.items() if value is not None}
        if prepared["role"] == "developer" and not self._names_developer:
            prepared["role"] = "system"
        if has_thoughts(prepared) and prepared["role"] not in self._takes_thoughts:
            prepared = write_thoughts(prepared)
        reasoning = next((prepared[name] for name in REASONING_FIELDS if name in prepared), None)
        if reasoning is not None:
            prepared = {"thinking": reasoning, **prepared, "reasoning_content": reasoning}
        content = prepared.get("content")
        if isinstance(content, list) and not (self._needs_parts or prepared["role"] in self._takes_parts):
            prepared["content"] = read_text(content)
        elif isinstance(content, str) and self._needs_parts:
            prepared["content"] = [{"type": "text", "text": content}]
        return self._call_form.prepare(prepared)

    def _run(self, messages: Sequence[Mapping[str, Any]], chat: RenderChat) -> str:
        try:
            return self._template.render(
                {
                    **self._special_tokens,
                    **chat.variables,
                    "messages": messages,
                    "tools": chat.tools,
                    "documents": chat.documents,
                    "add_generation_prompt": chat.add_generation_prompt and not chat.continue_final_message,
                }
            )
        except MemoryError:
            raise
        except RefusedError as error:
            raise TemplateError(f"the model's chat template refuses these messages: {error}") from error
        except Exception as error:  # a template can raise anything that its expressions can
            raise BrokenTemplateError(
                f"{_locate(error)} of the model's chat template fails: {type(error).__name__}: {error}"
            ) from error

    def _try_text(self) -> tuple[BrokenTemplateError | None, bool]:
        """Return how the template fails on one message, or None; and whether it writes the message's text.

        One that refuses it by `raise_exception` has its reasons: it may want a system message first.
        """
        try:
            text = self._run([_ask()], self._tried)
        except BrokenTemplateError as error:
            return error, False
        except TemplateError:
            return None, True
        return None, _PROBE in text

    def _writes_system(self, *behind: dict[str, Any]) -> bool:
        """Whether a prompt has the text of a system before a question and these messages, or is refused."""
        messages = self._prepare_all([{"role": "system", "content": _PROBE}, _ASKED, *behind])
        try:
            return _PROBE in self._run(messages, self._tried)
        except (TemplateError, BrokenTemplateError):
            return True

    def _reads_parts(self, role: str, *texts: str) -> bool:
        """Whether the template reads each part of a list, as OpenAI's clients send, and not text alone."""
        return self._writes_all(role, [{"type": "text", "text": text} for text in texts], texts)

    def _reads_thoughts(self, role: str) -> bool:
        """Whether it reads parts of type `thinking`, as Mistral's do."""
        thought: dict[str, Any] = {"type": "thinking", "thinking": _PROBE, "closed": True}
        parts = [thought, {"type": "text", "text": _SECOND_PROBE}]
        return self._writes_all(role, parts, (_PROBE, _SECOND_PROBE))

    def _writes_all(self, role: str, parts: list[dict[str, Any]], texts: Sequence[str]) -> bool:
        """Whether the prompt has these texts of a message's parts, and the parts not as they are."""
        before, behind = _BEFORE_AND_BEHIND[role]
        try:
            prompt = self._run([*before, {"role": role, "content": parts}, *behind], self._tried)
        except (TemplateError, BrokenTemplateError):
            return False
        return all(text in prompt for text in texts) and "'text'" not in prompt and '"text"' not in prompt


def _ask() -> dict[str, Any]:
    return {"role": "user", "content": _PROBE}


def _refuse_variables(variables: Mapping[str, Any]) -> None:
    for name in variables:
        if name in _OWN_VARIABLES:
            raise TemplateError(f"`chat_template_kwargs` can't set `{name}`: the request has a field for it")


def _mark_end(message: dict[str, Any]) -> tuple[str, str]:
    """Append the mark to the text that the model continues; return its field and the text."""
    content = message.get("content")
    if isinstance(content, str):
        message["content"] = content + _CONTINUED
        return "content", content
    parts: list[dict[str, Any]] = content or []
    for place, part in reversed(list(enumerate(parts))):
        if isinstance(part.get("text"), str):
            marked = list(parts)
            marked[place] = part | {"text": part["text"] + _CONTINUED}
            message["content"] = marked
            return "content", part["text"]
    raise TemplateError("`continue_final_message` needs a last message with text to continue")


def _cut_at_mark(prompt: str, text: str) -> str:
    place = prompt.rfind(_CONTINUED.strip())
    if place < 0 or text.strip() not in prompt:
        raise TemplateError("`continue_final_message`: this model's chat template changes the last message")
    cut = prompt[:place].replace(_CONTINUED, "")  # a template may write a message twice
    return cut if prompt.startswith(_CONTINUED, place) else cut.rstrip()


def _locate(error: Exception) -> str:
    trace = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in trace if frame.filename == "<template>"]
    return f"line {lines[-1]}" if lines else "a line"
