"""Writes Lark of texts between markers, as a model's tokens spell them. Pure."""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence

from millrace_runtime.grammar.errors import GrammarError
from millrace_runtime.grammar.source import MAX_BYTES

SPACE = r"\x20|\r?\n[\x20\x09]{0,40}"
"""Between JSON's tokens: one space, or a line break and an indentation. Without a bound a small model may
write blanks until its tokens are spent."""


class LarkWriter:
    """Collects the rules of one grammar.

    To llguidance an added token is no text. So a marker that the tokenizer has as an added token is that
    token alone, and free text may have any added token in it.
    """

    def __init__(self, added_ids: Mapping[str, int]) -> None:
        """`added_ids` are the tokenizer's added tokens, by their text."""
        self._added_ids = added_ids
        self._rules = {"ANY": ": /(.|\\n)*/"}
        """Each rule's body, by its name."""
        self._names: dict[str, str] = {}
        """The names of the rules that `add` has added, by their bodies."""
        self._written: dict[str, str] = {}
        """The results of `write_once`, by name."""
        self._num_letters = 0
        self._marks: dict[str, str] = {}
        """The results of `mark`: it compares a marker with each added token, of which Gemma has 6,000."""

    def knows(self, marker: str) -> bool:
        """Whether a marker is a token of its own."""
        return marker in self._added_ids

    def mark(self, marker: str) -> str:
        """Return the expression of a marker, or of none. It may begin with an added token."""
        if marker and marker not in self._marks:
            self._marks[marker] = self._write_mark(marker)
        return self._marks.get(marker, "")

    def _write_mark(self, marker: str) -> str:
        token = max((text for text in self._added_ids if marker.startswith(text)), key=len, default="")
        rest = marker.removeprefix(token)
        written = [f"<[{self._added_ids[token]}]>"] if token else []
        return " ".join([*written, write_text(rest)] if rest else written)

    def until(self, marker: str, others: Sequence[str] = ()) -> str:
        """Return the expression of any text, without the others, and the first marker behind it."""
        if self.knows(marker):
            return f"{self.without(marker, others)} {self.mark(marker)}"
        head = self.add("head[lazy]", f"{self._text(others)} {write_text(marker)}")
        return f"{self._parts(others)} {head}"

    def without(self, marker: str, others: Sequence[str] = ()) -> str:
        """Return the expression of any text that has no marker in it, and none of the others.

        Where the marker is text, this stands behind all of `until`, which takes the markers.
        """
        if self.knows(marker) and not others:
            return f"<[^{self._added_ids[marker]}]>*"
        return f"{self._parts([marker, *others] if self.knows(marker) else others)} {self._text(others)}"

    def _text(self, others: Sequence[str]) -> str:
        """Return the name of any text without these."""
        if not others:
            return "ANY"
        return self.add("TEXT", f"ANY & ~(ANY {write_choice(list(map(write_text, others)))} ANY)")

    def tokens(self, *, without: Collection[str] = ()) -> str:
        """Return the expression of an added token but these; nothing if there is none."""
        tokens = sorted({token for text, token in self._added_ids.items() if text not in without})
        return f"<[{','.join(map(str, tokens))}]>" if tokens else ""

    def add(self, name: str, body: str) -> str:
        """Add a rule, and return its whole name. `name` may have options: `head[lazy]`.

        Raises GrammarError for too long a grammar.
        """
        name, bracket, options = name.partition("[")
        rule = f"{bracket}{options}: {body}"
        if rule not in self._names:
            self._names[rule] = self.reserve(name)
            self._set(self._names[rule], rule)
        return self._names[rule]

    def write_once(self, name: str, write: Callable[["LarkWriter"], str]) -> str:
        """Return the expression of this name, which `write` returns the first time."""
        if name not in self._written:
            self._written[name] = write(self)
        return self._written[name]

    def reserve(self, name: str) -> str:
        """Return the whole name of a rule that `define` adds later."""
        whole = f"{name}_{len(self._rules)}"
        self._rules[whole] = ""
        return whole

    def define(self, name: str, body: str) -> str:
        """Add the rule of this whole name, once, and return the name. Raises GrammarError as `add` does."""
        if not self._rules.get(name):
            self._set(name, f": {body}")
        return name

    def _set(self, name: str, rule: str) -> None:
        self._rules[name] = rule
        self._num_letters += len(rule)
        if self._num_letters > MAX_BYTES:
            raise GrammarError(f"it has more than {MAX_BYTES} bytes: shorten it")

    def _parts(self, others: Sequence[str] = ()) -> str:
        """Return the expression of texts that each end with an added token, without any of the others."""
        tokens = self.tokens(without=others)
        return self.add("part", f"{self._text(others)} {tokens}") + "*" if tokens else ""

    def write(self, start: str) -> str:
        """Return the grammar of an expression."""
        return f"start: {start}\n" + "".join(f"{name}{rule}\n" for name, rule in self._rules.items())


def write_text(text: str) -> str:
    """Return the expression of a text. Lark takes no DEL, which JSON leaves as it is."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def write_regex(pattern: str) -> str:
    """Return the expression of a regular expression."""
    return "/" + pattern.replace("/", r"\/") + "/"


def write_choice(expressions: Sequence[str]) -> str:
    """Return the expression of one of these."""
    return f"({' | '.join(expressions)})"


def escape(text: str) -> str:
    """Return the regular expression of a text."""
    return re.escape(text)
