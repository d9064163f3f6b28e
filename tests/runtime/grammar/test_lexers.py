"""A grammar that is used for long goes on: its lexer, which all of its texts share, becomes full."""

import json

import pytest

from millrace_runtime.grammar import native_matcher
from millrace_runtime.grammar.grammar import write_grammar
from millrace_runtime.grammar.matcher import MOST_FORCED, Matcher
from millrace_runtime.grammar.source import GrammarKind
from tests.runtime.grammar.fitting import load_vocabulary

LETTERS = "the quick brown fox jumps over the lazy dog "
SCHEMA = json.dumps({"type": "string", "maxLength": 2000})


class Text:
    """A text that is appended token by token, with a mask before each."""

    def __init__(self, root: Matcher, text: str, *, is_forcing: bool = False) -> None:
        self.rest = text
        self.matcher = root.fork([], is_forcing=is_forcing)
        self.mask = bytearray(load_vocabulary().end_bits.nbytes)

    def append(self) -> bool:
        """Append a token that is allowed, and what it forces. Return whether there is one."""
        self.matcher.fill(self.mask)
        sizes = range(min(len(self.rest), 9), 0, -1)
        tokens = (load_vocabulary().tokenize(self.rest[:size])[0] for size in sizes)
        token = next((one for one in tokens if self.mask[one // 8] >> one % 8 & 1), None)
        if token is None:
            return False
        self.matcher.consume(token)
        appended = load_vocabulary().native.decode_str([token, *self.matcher.force(MOST_FORCED)])
        assert self.rest.startswith(appended)
        self.rest = self.rest.removeprefix(appended)
        return True

    def is_whole(self) -> bool:
        """Append all of it, and return whether it may end there."""
        while self.rest:
            if not self.append():
                return False
        self.matcher.fill(self.mask)
        return self.matcher.accepts(load_vocabulary().native.eos_token) or self.matcher.is_stopped


def build(monkeypatch: pytest.MonkeyPatch, kind: GrammarKind, source: str, num_states: int) -> Matcher:
    monkeypatch.setattr(native_matcher, "_MAX_LEXER_STATES", num_states)
    return Matcher.build(load_vocabulary(), write_grammar(kind, source))


@pytest.mark.parametrize("is_forcing", [False, True])
def test_answers_of_one_grammar_go_on_when_its_lexer_is_full(
    monkeypatch: pytest.MonkeyPatch, *, is_forcing: bool
) -> None:
    """Each answer after the one that filled the lexer failed at its first letter, until the next restart."""
    choices = [f"{number:x} {LETTERS}{number}" for number in range(40)]
    root = build(monkeypatch, GrammarKind.CHOICE, json.dumps(choices), 400)
    failed = [one for one in choices if not Text(root, one, is_forcing=is_forcing).is_whole()]
    assert failed == []


def test_answers_side_by_side_go_on_when_their_lexer_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    root = build(monkeypatch, GrammarKind.SCHEMA, SCHEMA, 1000)
    texts = [Text(root, json.dumps(LETTERS * count)) for count in (2, 4, 5)]
    while under_way := [text for text in texts if text.rest]:
        assert all(text.append() for text in under_way)
    assert all(text.is_whole() for text in texts)


def test_a_text_that_fills_a_lexer_alone_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    root = build(monkeypatch, GrammarKind.SCHEMA, SCHEMA, 100)
    text = Text(root, json.dumps(LETTERS * 20))
    assert not text.is_whole()
    assert "too many states" in str(text.matcher.fault)
    assert not any(text.mask), "nothing may follow"
