"""The letters of special tokens in the texts of a grammar. Pure."""

import json
import re
from collections import defaultdict
from collections.abc import Iterable

_FORBIDDEN = re.compile(r"~\(ANY .*? ANY\)")
"""As `lark.py` writes texts that must not be there."""
_ESCAPE = re.compile(r"\\[xu]\{?([0-9a-fA-F]{2,4})\}?")
_LONE_LETTER = re.compile(r"\[(.)\]")
_BETWEEN = re.compile(r'["\s()/]|\?:|\{1\}')
_NUM_OPENING = 2
"""Letters. Gemma has 6,000 special tokens, and hardly a grammar has their first two letters."""


class SpecialTexts:
    """The texts of a tokenizer's special tokens."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._by_opening: defaultdict[str, list[str]] = defaultdict(list)
        for text in filter(None, map(_squeeze, texts)):
            self._by_opening[text[:_NUM_OPENING]].append(text)

    def occur_in(self, grammar: str) -> bool:
        """Whether a text by a grammar of `write_grammar` may have one of them in it.

        It may not see one whose letters are in several rules, or in a class of characters with others.
        """
        letters = _list_letters(grammar)
        openings = [texts for opening, texts in self._by_opening.items() if opening in letters]
        return any(text in letters for texts in openings for text in texts)


def _list_letters(grammar: str) -> str:
    """Return a grammar without its escapes, and without what stands between letters of one text."""
    text = _FORBIDDEN.sub("", json.dumps(json.loads(grammar), ensure_ascii=False))
    text = _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text).replace("\\", "")
    return _squeeze(_LONE_LETTER.sub(r"\1", text))


def _squeeze(text: str) -> str:
    return _BETWEEN.sub("", text)
