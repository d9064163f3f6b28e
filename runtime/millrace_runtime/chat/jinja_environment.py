"""Jinja's sandbox, with the functions, filters and tags that chat templates are written for.

It bounds what a template can reach, not how long it runs.
"""

import json
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox


class RefusedError(jinja2.TemplateError):
    """The template called `raise_exception`."""


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's text for training. A prompt only contains what is inside."""

    tags = {"generation"}  # noqa: RUF012  Jinja declares it so

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        """Return the body as a call's block, so that variables set inside end with it, as in transformers."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_write"), [], [], body).set_lineno(line)

    @staticmethod
    def _write(caller: Any) -> str:
        return str(caller())


def build_environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    """Return the environment that templates are compiled in. It is as transformers'."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationTag, jinja2.ext.loopcontrols],
        autoescape=False,
    )
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    # Jinja's own filter escapes for HTML, which would change the prompt.
    environment.filters["tojson"] = _tojson
    return environment


def _raise_exception(message: str) -> NoReturn:
    raise RefusedError(message)


def _strftime_now(format: str) -> str:  # noqa: A002  a template may give it by this name
    return datetime.now().strftime(format)  # noqa: DTZ005  transformers' has no zone either


def _tojson(
    x: Any,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002  in transformers' order, which templates rely on
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
