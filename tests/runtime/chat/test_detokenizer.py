from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace_runtime.chat.model_files import read_text_config
from millrace_runtime.chat.tokenizer import Tokenizer
from tests.runtime.text_model import build_byte_level, build_sentencepiece, write_model

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


@given(st.lists(st.integers(0, 260), max_size=40))
@settings(max_examples=60, deadline=None)
def test_byte_level_equals_decoding_at_once_for_any_tokens(tokens: list[int]) -> None:
    tokenizer = BYTE_LEVEL
    detokenizer = tokenizer.open_detokenizer()
    text = "".join(detokenizer.feed([token]) for token in tokens) + detokenizer.finish()
    assert text == tokenizer.decode(tokens)


def test_special_tokens_are_no_text(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(write_model(tmp_path, build_byte_level()))
    assert tokenizer.open_detokenizer().feed([*tokenizer.end_token_ids]) == ""
    assert tokenizer.token_bytes(tokenizer.end_token_ids[0]) == b"<|end|>"


def test_token_bytes_join_to_the_text(tokenizer: Tokenizer) -> None:
    [tokens] = tokenizer.encode_batch(["ü the"], add_special_tokens=False)
    assert b"".join(map(tokenizer.token_bytes, tokens)).decode().strip() == "ü the"
