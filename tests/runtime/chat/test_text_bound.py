import sys
import unicodedata
from collections.abc import Callable
from typing import Any

import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, models, normalizers, pre_tokenizers

from millrace_runtime.chat.text_bound import measure_bytes_per_token
from millrace_runtime.chat.tokenizer import SPACE
from testing.text_model import END_TOKEN, build_byte_level, build_sentencepiece

BYTE_LEVEL, SENTENCEPIECE = build_byte_level(), build_sentencepiece()


def build_composing() -> tokenizers.Tokenizer:
    """Qwen's shape."""
    native = build_byte_level()
    native.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(tokenizers.Regex(r"\s+"), "isolated")
    native.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    return native


def build_with_runs_of_spaces() -> tokenizers.Tokenizer:
    """Llama-2's shape with its pieces of many spaces, which a text may also spell as they are in the file."""
    native = build_sentencepiece()
    runs = [SPACE * 2**power for power in range(5)]
    vocabulary = native.get_vocab() | {run: 1000 + number for number, run in enumerate(runs[1:])}
    native.model = models.BPE(
        vocabulary, [(run, run) for run in runs[:-1]], unk_token="<unk>", byte_fallback=True
    )
    return native


COMPOSING, SPACES = build_composing(), build_with_runs_of_spaces()


def bound(native: tokenizers.Tokenizer) -> int | None:
    return measure_bytes_per_token(native.to_str().encode())


def test_the_longest_token_counts_in_bytes_of_text() -> None:
    assert bound(BYTE_LEVEL) == len(END_TOKEN)
    assert bound(SENTENCEPIECE) == len("<0x00>")  # its pieces for bytes, as if spelled; a bound all the same
    assert bound(SPACES) == len((SPACE * 16).encode())
    assert bound(COMPOSING) == 4 * len(END_TOKEN)


@pytest.mark.parametrize("native", [BYTE_LEVEL, SENTENCEPIECE, SPACES, COMPOSING])
@given(text=st.text() | st.text(st.sampled_from("\u1100\u1161\u11a8\u1fefthe \u0301\u0308\u1fbeeo\u2581")))
@example(text=SPACE * 159)
@settings(max_examples=150, deadline=None)
def test_no_text_has_more_bytes_than_its_tokens_may_have(native: tokenizers.Tokenizer, text: str) -> None:
    most = bound(native)
    assert most is not None
    assert len(text.encode()) <= most * len(native.encode(text, add_special_tokens=False).ids)


def count_most_bytes(letters: str, longest: dict[str, int]) -> int:
    """Bytes of the longest text that decomposes into these letters, given those of single characters."""
    most = [0]
    for end in range(1, len(letters) + 1):
        parts = [(begin, letters[begin:end]) for begin in range(end)]
        spelled = [most[begin] + longest[part] for begin, part in parts if part in longest]
        most.append(max([most[-1] + len(letters[end - 1].encode()), *spelled]))
    return most[-1]


def test_composing_leaves_a_quarter_of_the_bytes_or_more() -> None:
    decomposed = {chr(code): unicodedata.normalize("NFD", chr(code)) for code in range(sys.maxunicode + 1)}
    decomposed = {letter: parts for letter, parts in decomposed.items() if letter != parts}
    longest: dict[str, int] = {}
    for letter, parts in decomposed.items():
        longest[parts] = max(longest.get(parts, 0), len(letter.encode()))
    texts = set(decomposed.values()) | set("".join(decomposed.values()))
    shrunk = [
        count_most_bytes(text, longest) / len(unicodedata.normalize("NFC", text).encode()) for text in texts
    ]
    assert 3 < max(shrunk) <= 4


def drop_spaces(native: tokenizers.Tokenizer) -> None:
    native.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.ByteLevel()]
    )


def drop_words(native: tokenizers.Tokenizer) -> None:
    native.pre_tokenizer = pre_tokenizers.Whitespace()


def strip(native: tokenizers.Tokenizer) -> None:
    native.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Strip()])


def swallow(native: tokenizers.Tokenizer) -> None:
    native.add_special_tokens([AddedToken("<mask>", lstrip=True)])


def know_words_only(native: tokenizers.Tokenizer) -> None:
    native.model = models.WordLevel({"-": 0}, unk_token="-")


def know_few_bytes(native: tokenizers.Tokenizer) -> None:
    native.model = models.BPE({"a": 0}, [])


@pytest.mark.parametrize("change", [drop_spaces, drop_words, strip, swallow, know_words_only, know_few_bytes])
def test_where_text_may_vanish_there_is_no_bound(change: Callable[[Any], None]) -> None:
    native = build_byte_level()
    change(native)
    assert bound(native) is None


def test_another_kind_of_vocabulary_has_no_bound() -> None:
    assert bound(tokenizers.Tokenizer(models.Unigram([("a", 0.0)], 0, byte_fallback=False))) is None
