from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders

from millrace_runtime.chat.detokenizer import WindowDetokenizer
from millrace_runtime.chat.model_files import read_text_config
from millrace_runtime.chat.tokenizer import Tokenizer
from testing.text_model import END_TOKEN, build_byte_level, build_sentencepiece, write_model

BYTE_LEVEL = Tokenizer(build_byte_level(), read_text_config(Path("absent")), is_byte_level=True)
TEXTS = [
    "the stop",
    "naïve café",
    "日本語テキスト",
    "👩‍👩‍👧 family",
    "mixed: ü€😀!",
    "\ufffd stays",
    " leading",
]


@pytest.fixture(scope="module", params=[build_byte_level, build_sentencepiece])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(write_model(tmp_path_factory.mktemp("model"), request.param()))


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_sum_to_the_text_and_are_whole_characters(tokenizer: Tokenizer, text: str) -> None:
    [tokens] = tokenizer.encode_batch([text], add_special_tokens=False)
    detokenizer = tokenizer.open_detokenizer()
    pieces = [detokenizer.feed([token]) for token in tokens]
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)
    assert "".join(pieces) + detokenizer.finish() == text


def test_an_incomplete_character_is_held_and_replaced_at_the_end(tokenizer: Tokenizer) -> None:
    [tokens] = tokenizer.encode_batch(["a€"], add_special_tokens=False)
    detokenizer = tokenizer.open_detokenizer()
    assert detokenizer.feed(tokens[:-1]).rstrip("\ufffd") in ("a", "")
    assert detokenizer.finish().endswith("\ufffd")


@given(st.lists(st.lists(st.integers(0, 262), max_size=6), max_size=20))
@settings(max_examples=200, deadline=None)
def test_byte_level_equals_decoding_at_once_for_any_tokens(steps: list[list[int]]) -> None:
    tokenizer = BYTE_LEVEL
    detokenizer = tokenizer.open_detokenizer()
    text = "".join(map(detokenizer.feed, steps)) + detokenizer.finish()
    assert text == tokenizer.decode([token for step in steps for token in step])


def test_special_tokens_are_no_text(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(write_model(tmp_path, build_byte_level()))
    assert tokenizer.open_detokenizer().feed([*tokenizer.end_token_ids]) == ""
    assert tokenizer.token_bytes(tokenizer.end_token_ids[0]) == b"<|end|>"


def test_token_bytes_join_to_the_text(tokenizer: Tokenizer) -> None:
    [tokens] = tokenizer.encode_batch(["ü the"], add_special_tokens=False)
    assert b"".join(map(tokenizer.token_bytes, tokens)).decode().strip() == "ü the"


class CountingVocabulary:
    """A vocabulary that counts the tokens it is asked to decode."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.num_decoded = 0

    def decode(self, tokens: Sequence[int]) -> str:
        self.num_decoded += len(tokens)
        return self._tokenizer.decode(tokens)

    def token_bytes(self, token: int) -> bytes:
        return self._tokenizer.token_bytes(token)

    def token_text(self, token: int) -> str | None:
        return self._tokenizer.token_text(token)

    def is_special(self, token: int) -> bool:
        return self._tokenizer.is_special(token)


def build_with_special() -> Tokenizer:
    native = build_sentencepiece()
    native.add_special_tokens([END_TOKEN])
    return Tokenizer(native, read_text_config(Path("absent")), is_byte_level=False)


SENTENCEPIECE = build_with_special()
SPECIAL = 5 + 256
TEXTLESS = [[SPECIAL], [100_000], [1, SPECIAL], [5 + 0xE2], [2, 5 + 0xE2, SPECIAL], [0]]
"""Special, unknown, a leading space, unfinished characters, and the unknown token."""


@pytest.mark.parametrize("pattern", TEXTLESS)
def test_the_work_a_token_does_not_grow_while_tokens_give_no_text(pattern: list[int]) -> None:
    tokens = pattern * (6000 // len(pattern))
    vocabulary = CountingVocabulary(SENTENCEPIECE)
    detokenizer = WindowDetokenizer(vocabulary)
    text = "".join(detokenizer.feed([token]) for token in tokens) + detokenizer.finish()
    assert text == SENTENCEPIECE.decode(tokens)
    assert vocabulary.num_decoded <= 100 * len(tokens)


def test_the_work_is_bounded_for_any_decoder_that_keeps_silent() -> None:
    native = build_sentencepiece()
    native.decoder = decoders.CTC(pad_token="<unk>")  # drops what repeats
    vocabulary = CountingVocabulary(Tokenizer(native, read_text_config(Path("absent")), is_byte_level=False))
    tokens = [3] * 3000 + [4] * 3000
    detokenizer = WindowDetokenizer(vocabulary)
    text = "".join(detokenizer.feed([token]) for token in tokens) + detokenizer.finish()
    assert text == "bc"
    assert vocabulary.num_decoded <= 100 * len(tokens)


ANY_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\ufffd"))


@given(ANY_TEXT, st.lists(st.tuples(st.integers(0, 60), st.sampled_from([SPECIAL, 100_000])), max_size=40))
@settings(max_examples=100, deadline=None)
def test_windows_equal_decoding_at_once_whatever_textless_tokens_lie_between(
    text: str, textless: list[tuple[int, int]]
) -> None:
    [tokens] = SENTENCEPIECE.encode_batch([text], add_special_tokens=False)
    for place, token in textless:
        tokens[place:place] = [token] * (place % 30)
    detokenizer = SENTENCEPIECE.open_detokenizer()
    pieces = [detokenizer.feed([token]) for token in tokens] + [detokenizer.finish()]
    assert "".join(pieces) == SENTENCEPIECE.decode(tokens)


PLAIN = [0, 2, 3, 4]
"""The pieces that are no bytes, but for the space."""
CHARACTERS = [[5 + byte for byte in letter.encode()] for letter in "bü€日😀"]


def detokenize(tokens: list[int]) -> str:
    detokenizer = SENTENCEPIECE.open_detokenizer()
    return "".join(detokenizer.feed([token]) for token in tokens) + detokenizer.finish()


@given(st.lists(st.sampled_from([*([token] for token in [1, *PLAIN]), *CHARACTERS]), max_size=20))
@settings(max_examples=300, deadline=None)
def test_windows_equal_decoding_at_once_for_whole_characters(parts: list[list[int]]) -> None:
    tokens = [token for part in parts for token in part]
    assert detokenize(tokens) == SENTENCEPIECE.decode(tokens)


@given(st.lists(st.sampled_from(PLAIN) | st.integers(5 + 128, 5 + 255), max_size=40))
@settings(max_examples=500, deadline=None)
def test_windows_lose_no_plain_piece_among_any_bytes(tokens: list[int]) -> None:
    plain = SENTENCEPIECE.decode([token for token in tokens if token in PLAIN])
    got = detokenize(tokens)
    assert [letter for letter in got if letter in "abc"] == [letter for letter in plain if letter in "abc"]
