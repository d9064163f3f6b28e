"""Chat templates turn messages into a prompt's text, in Jinja's sandbox.

The sandbox bounds what a template can reach, not how long it runs: call it in the text worker.
"""

import json
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.sandbox

from millrace_runtime.chat.errors import BrokenTemplateError, TemplateError


class ChatTemplate:
    """A compiled chat template with the variables of its model."""

    def __init__(self, source: str, special_tokens: dict[str, str]) -> None:
        """Compile the source. Raises BrokenTemplateError for a syntax error."""
        environment = _build_environment()
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise BrokenTemplateError(f"the model's chat template does not compile: {error}") from error
        self._special_tokens = special_tokens

    def render(self, messages: list[dict[str, Any]]) -> str:
        """Return the prompt that asks for the assistant's next message. Raises TemplateError."""
        try:
            return self._template.render(
                messages=messages, add_generation_prompt=True, **self._special_tokens
            )
        except MemoryError:
            raise
        except Exception as error:  # a template can raise anything that its expressions can
            raise TemplateError(f"the model's chat template refuses these messages: {error}") from error


def _build_environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols], autoescape=False
    )
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    # Jinja's own filter escapes for HTML, which would change the prompt.
    environment.filters["tojson"] = _tojson
    return environment


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().astimezone().strftime(layout)


def _tojson(value: Any, indent: int | None = None, *, ensure_ascii: bool = False) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)
