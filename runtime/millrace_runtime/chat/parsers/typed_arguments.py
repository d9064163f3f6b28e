"""The arguments of a call whose values are text, written as JSON by the tool's schema."""

import json

from millrace_runtime.chat.parsers.answer import DeltaBuilder
from millrace_runtime.chat.parsers.parameter_types import ParameterTypes, Tools


class TypedArguments:
    """One call. Values of strings are passed on as they come, others whole."""

    def __init__(self, tools: Tools, name: str, out: DeltaBuilder) -> None:
        """Begin the call. `tools` are the request's."""
        self._types = ParameterTypes(tools, name)
        self._out = out
        self._key = ""
        self._value: list[str] | None = None
        """The value's text up to here; None for one that is passed on as it comes."""
        self._num_parameters = 0
        out.begin_call(name)
        out.add_arguments("{")

    def begin_value(self, key: str) -> None:
        """Begin the next parameter."""
        self._key = key
        self._value = [] if self._types.needs_whole(key) else None
        if self._value is None:
            self._out.add_arguments(f'{self._write_key()}"')

    def add_value(self, text: str) -> None:
        """Add to the parameter's value."""
        if self._value is None:
            self._out.add_arguments(_to_json(text)[1:-1])
        else:
            self._value.append(text)

    def end_value(self) -> None:
        """End the parameter."""
        if self._value is None:
            self._out.add_arguments('"')
        else:
            value = self._types.convert(self._key, "".join(self._value))
            self._out.add_arguments(self._write_key() + value)

    def end(self) -> None:
        """End the call."""
        self._out.add_arguments("}")

    def _write_key(self) -> str:
        comma = ", " if self._num_parameters else ""
        self._num_parameters += 1
        return f"{comma}{_to_json(self._key)}: "


def _to_json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
