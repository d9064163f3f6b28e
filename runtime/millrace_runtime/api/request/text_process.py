"""The text worker's process with the readers of bodies and with grammars.

It parses the large bodies and compiles the grammars, beside the event loop.

python -m millrace_runtime.api.request.text_process, with the arguments of chat/text_process.py
"""

import os
import sys
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from millrace_runtime.api.errors import BadRequestError
from millrace_runtime.api.request.intent import encode_request
from millrace_runtime.api.request.readers import READERS
from millrace_runtime.chat.errors import BodyRefusedError
from millrace_runtime.chat.jobs import TextJob
from millrace_runtime.chat.text_process import main
from millrace_runtime.chat.tokenizer import Tokenizer
from millrace_runtime.grammar.errors import GrammarError
from millrace_runtime.grammar.source import GrammarKind

if TYPE_CHECKING:
    from millrace_runtime.grammar.matcher import Vocabulary


def read_body(dialect: str, body: bytes) -> tuple[TextJob | list[list[int]], bytes]:
    """Return a body's prompts, and its request as `decode_request` reads it. Raises BodyRefusedError."""
    try:
        request, prompts = READERS[dialect](body)
    except BadRequestError as error:
        raise BodyRefusedError(error.message, error.param, error.code) from error
    return prompts, encode_request(request)


_KEPT_GRAMMARS = 64
"""A service asks for the same few schemas. One of 200 objects takes a quarter of a second."""


class Grammars:
    """Builds grammars over a model's vocabulary, which the first one loads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.build = lru_cache(maxsize=_KEPT_GRAMMARS)(self._build)
        """Returns a grammar's text, having compiled it once. Raises BodyRefusedError."""

    @cached_property
    def _vocabulary(self) -> "Vocabulary":
        from millrace_runtime.grammar.matcher import Vocabulary  # noqa: PLC0415

        return Vocabulary(self._tokenizer, self._tokenizer.config.num_rows)

    def _build(self, kind: str, source: str) -> str:
        # Here and not above: llguidance takes 0.1 s to import, and most models never get a grammar.
        from millrace_runtime.grammar.grammar import write_grammar  # noqa: PLC0415
        from millrace_runtime.grammar.matcher import Matcher  # noqa: PLC0415

        try:
            grammar = write_grammar(GrammarKind(kind), source)
            Matcher.build(self._vocabulary, grammar)
        except GrammarError as error:
            raise BodyRefusedError(str(error), None, None) from error
        return grammar


if __name__ == "__main__":
    # Skip the interpreter's teardown: nothing here needs it, and a drain should not wait for it.
    os._exit(main(sys.argv[1:], read_body, lambda tokenizer: Grammars(tokenizer).build))
