"""Tool calls that a model writes as JSON, read letter by letter and passed on as they are written."""

import re
from collections.abc import Callable, Collection
from enum import Enum, auto

from millrace_runtime.chat.parsers.answer import DeltaBuilder
from millrace_runtime.chat.parsers.json_value import (
    INSIDE_STRING,
    JsonValue,
    decode_cut_string,
    decode_string,
    mend_object,
)
from millrace_runtime.chat.parsers.reader import SPACE, State, StateParser, TextReader

_SCALAR = re.compile(r'[^\s,{}\[\]"<:]*', re.ASCII)
_BETWEEN_MEMBERS = re.compile(r"[\s,]*", re.ASCII)
_ARGUMENTS = frozenset({"arguments", "parameters"})
_KEYS_OF_CALLS = _ARGUMENTS | {"name", "type", "id"}


class Outcome(Enum):
    """The result of reading an object."""

    CALL = auto()
    NO_CALL = auto()
    """The text up to its fault is content."""


class JsonCall:
    """One object with `name` and `arguments` (or `parameters`), in any order.

    Models also write the arguments as a string with JSON in it, as OpenAI's interface has them, and `null`
    for none. Both are calls: as content they would show a user the markers of a call, and end an agent.
    A string is read whole before it is passed on, as only its end says whether it is an object.

    The call begins once its name is known and its arguments have begun, or the object has ended. Until then
    the object's text is held, because it is content if it is no call.
    """

    def __init__(
        self,
        opening: str,
        out: DeltaBuilder,
        names: Collection[str] | None,
        *,
        needs_arguments: bool = False,
    ) -> None:
        """`opening` is the text before the object, which is content with it.

        With `names`, an object with another name, or with a key that calls do not have, is no call. With
        `needs_arguments`, a name alone makes none.
        """
        self.outcome: Outcome | None = None
        self._out = out
        self._names = names
        self._needs_arguments = needs_arguments
        self._held = [opening]
        self._state: Callable[[TextReader], bool] = self._expect_object
        self._string: list[str] = []
        self._key = ""
        self._value = JsonValue()
        self._name: str | None = None
        self._arguments: list[str] | None = None
        """The arguments until the call begins; None before they begin."""
        self._has_begun = False

    def read(self, reader: TextReader) -> None:
        """Read on, until there is an outcome or no more text."""
        start = reader.place
        while self.outcome is None and self._state(reader):
            pass
        if not self._has_begun:
            self._held.append(reader.text[start : reader.place])
        if self.outcome is None and reader.has_ended:
            self._held.append(reader.take_to(len(reader.text)))
            self._end()
        if self.outcome is Outcome.NO_CALL:
            self._out.add_content("".join(self._held))

    def _expect_object(self, reader: TextReader) -> bool:
        return self._expect(reader, {"{": self._expect_key})

    def _expect_key(self, reader: TextReader) -> bool:
        reader.take(_BETWEEN_MEMBERS)
        return self._expect(reader, {'"': self._read_key, "}": self._end_object})

    def _read_key(self, reader: TextReader) -> bool:
        text = self._read_string(reader)
        if text is None:
            return False
        self._key = key = decode_string(text) or ""
        if self._names is None or self._has_begun or key in _KEYS_OF_CALLS:
            return self._go(self._expect_colon)
        return self._fail()

    def _expect_colon(self, reader: TextReader) -> bool:
        return self._expect(reader, {":": self._expect_value})

    def _expect_value(self, reader: TextReader) -> bool:
        reader.take(SPACE)
        letter = reader.peek()
        if not letter:
            return False
        if self._key == "name" and self._name is None and letter == '"':
            reader.take_letter()
            return self._go(self._read_name)
        if self._key in _ARGUMENTS and self._arguments is None:
            return self._expect_arguments(reader, letter)
        self._value = JsonValue()
        return self._go(self._skip_value if letter in '"{[' else self._skip_scalar)

    def _read_name(self, reader: TextReader) -> bool:
        text = self._read_string(reader)
        if text is None:
            return False
        name = decode_string(text)
        if not name or (self._names is not None and name not in self._names):
            return self._fail()
        self._name = name
        if self._arguments is not None:
            self._begin()
        return self._go(self._expect_key)

    def _expect_arguments(self, reader: TextReader, letter: str) -> bool:
        if letter == "{":
            return self._begin_arguments()
        if letter == '"':
            reader.take_letter()
            return self._go(self._read_text)
        return self._go(self._read_null)

    def _read_text(self, reader: TextReader) -> bool:
        """Read arguments that are a string with an object in it. An empty one stands for no arguments."""
        text = self._read_string(reader)
        if text is None:
            return False
        written = decode_string(text)
        if written is None:
            return self._fail()
        whole = mend_object(written) if written.strip() else "{}"
        return self._fail() if whole is None else self._end_arguments(whole)

    def _read_null(self, reader: TextReader) -> bool:
        self._string.append(reader.take(_SCALAR))
        written = "".join(self._string)
        if not "null".startswith(written) or (not reader.is_empty and written != "null"):
            return self._fail()
        if reader.is_empty:
            return False
        self._string = []
        return self._end_arguments("{}")

    def _end_arguments(self, written: str) -> bool:
        self._arguments = [written]
        if self._name is not None:
            self._begin()
        return self._go(self._expect_key)

    def _begin_arguments(self) -> bool:
        self._arguments = []
        self._value = JsonValue()
        if self._name is not None:
            self._begin()
        return self._go(self._read_arguments)

    def _read_arguments(self, reader: TextReader) -> bool:
        assert self._arguments is not None
        text = self._value.take(reader)
        if self._has_begun:
            self._out.add_arguments(text)
        else:
            self._arguments.append(text)
        return self._leave_value()

    def _skip_value(self, reader: TextReader) -> bool:
        self._value.take(reader)
        return self._leave_value()

    def _leave_value(self) -> bool:
        if self._value.is_broken:
            return self._fail()
        return self._value.is_ended and self._go(self._expect_key)

    def _skip_scalar(self, reader: TextReader) -> bool:
        reader.take(_SCALAR)
        if reader.is_empty:
            return False
        return self._go(self._expect_key)

    def _end_object(self, _: TextReader) -> bool:
        if self._name is not None and self._arguments is None and not self._needs_arguments:
            self._arguments = ["{}"]
        return self._end()

    def _read_string(self, reader: TextReader) -> str | None:
        """Return the text between a string's quotes, once its end is there."""
        self._string.append(reader.take(INSIDE_STRING))
        if reader.peek() != '"':
            return None
        reader.take_letter()
        text, self._string = "".join(self._string), []
        return text

    def _expect(self, reader: TextReader, following: dict[str, Callable[[TextReader], bool]]) -> bool:
        """Take the next letter and go to its state; a letter that has none is a fault."""
        reader.take(SPACE)
        letter = reader.peek()
        if not letter:
            return False
        if letter not in following:
            return self._fail()
        reader.take_letter()
        return self._go(following[letter])

    def _go(self, state: Callable[[TextReader], bool]) -> bool:
        self._state = state
        return True

    def _fail(self) -> bool:
        """End here: what has begun is a call."""
        self.outcome = Outcome.CALL if self._has_begun else Outcome.NO_CALL
        return True

    def _end(self) -> bool:
        """End the object, whole or cut short: it is a call if it has a name.

        Arguments whose string is cut are passed on as far as they are there, like those that are an object.
        """
        if self._state == self._read_text:
            written = decode_cut_string("".join(self._string)) or ""
            if written.strip() and not written.lstrip().startswith("{"):
                return self._fail()
            self._arguments = [written]
        if self._name is not None and not self._has_begun and (self._arguments or not self._needs_arguments):
            self._begin()
        return self._fail()

    def _begin(self) -> None:
        assert self._name is not None
        self._has_begun = True
        self._held = []
        self._out.begin_call(self._name)
        self._out.add_arguments("".join(self._arguments or ()))


class JsonFormatParser(StateParser):
    """The parser of a format that writes its calls as objects."""

    def _open_call(
        self,
        opening: str,
        *,
        behind_call: State,
        behind_fault: State,
        names: Collection[str] | None = None,
        needs_arguments: bool = False,
    ) -> bool:
        """Read one object, then go to one of two states."""
        call = JsonCall(opening, self._out, names, needs_arguments=needs_arguments)

        def read() -> bool:
            call.read(self._reader)
            if call.outcome is None:
                return False
            return self._go(behind_call if call.outcome is Outcome.CALL else behind_fault)

        return self._go(read)
