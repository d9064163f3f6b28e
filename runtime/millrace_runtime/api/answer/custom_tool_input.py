"""The text for a custom tool, read from the arguments of the function that the model calls instead. Pure."""

import json
import re
from typing import Any

from millrace_runtime.api.request.responses.tools import TEXT

_OPENING = re.compile(rf'\s*\{{\s*"{TEXT}"\s*:\s*"')
_PAIR = r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_CHARACTERS = re.compile(
    rf'(?:[^"\\]+|\\["\\/bfnrt]|\\u(?![dD][89a-fA-F])[0-9a-fA-F]{{4}}|{_PAIR})*',
)
"""Whole characters of a JSON string: a piece may end inside an escape."""
_CUT_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?")
_CLOSING = re.compile(r'"\s*\}\s*$')


class FreeTextReader:
    """Reads the text as its JSON comes."""

    def __init__(self) -> None:
        self.text = ""
        """The text so far."""
        self._arguments: list[str] = []
        self._rest = ""
        """The part of them that is not read yet."""
        self._is_open = False

    def feed(self, arguments: str) -> str:
        """Return what the next piece of the arguments adds to the text."""
        self._arguments.append(arguments)
        self._rest += arguments
        if not self._is_open:
            if (opening := _OPENING.match(self._rest)) is None:
                return ""
            self._is_open, self._rest = True, self._rest[opening.end() :]
        characters = _CHARACTERS.match(self._rest)
        end = characters.end() if characters else 0
        added = str(json.loads(f'"{self._rest[:end]}"', strict=False))
        self._rest = self._rest[end:]
        self.text += added
        return added

    def finish(self) -> str:
        """Return the text that the arguments' end adds. Arguments of another form are themselves the text."""
        before, self.text = self.text, self._read_whole("".join(self._arguments))
        return self.text[len(before) :] if self.text.startswith(before) else ""

    def _read_whole(self, arguments: str) -> str:
        try:
            read: Any = json.loads(arguments, strict=False)
        except (ValueError, RecursionError):
            return self.text + self._read_broken() if self._is_open else arguments
        text = read.get(TEXT) if isinstance(read, dict) else None
        if not isinstance(text, str):
            return arguments
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # half a pair is no text

    def _read_broken(self) -> str:
        """Return the rest as it stands: models write bare quotes and other escapes, and none may be lost."""
        return "" if _CUT_ESCAPE.fullmatch(self._rest) else _CLOSING.sub("", self._rest)
