import sys
import unicodedata
from collections.abc import Callable
from typing import Any

import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, models, normalizers, pre_tokenizers

from millrace_runtime.chat.text_bound import TextBound, find_text_bound
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
TEXTS = st.lists(st.sampled_from([" ", SPACE, "the", " the", "st", "op", " a", END_TOKEN, "é"])).map("".join)


def find(native: tokenizers.Tokenizer) -> TextBound | None:
    return find_text_bound(native.to_str().encode())


def count_least(native: tokenizers.Tokenizer, text: str) -> int:
    bound = find(native)
    assert bound is not None
    return bound.count_least_tokens(text)


def test_each_byte_counts_as_a_part_of_the_longest_token_with_it() -> None:
    assert count_least(BYTE_LEVEL, END_TOKEN * 10) == 10
    assert count_least(BYTE_LEVEL, "x" * 80) == 80
    assert count_least(BYTE_LEVEL, "st" * 80 + "x") == 40 + 20 + 1  # st, Ġthe
    assert (
        count_least(SENTENCEPIECE, "<0x00>" * 10) == 10
    )  # pieces for bytes, as if spelled; a bound all the same
    assert count_least(SENTENCEPIECE, "b" * 80) == 80
    assert count_least(SPACES, SPACE * 160) == 10
    assert count_least(SPACES, " " * 160) == 4
    assert count_least(COMPOSING, "x" * 80) == 80
    assert count_least(COMPOSING, "ö" * 56) == 4  # as if 4 became 1, and then were of the longest token
    assert count_least(BYTE_LEVEL, "\ud800") == 3


def test_a_few_long_tokens_of_spaces_do_not_hide_how_many_tokens_words_have() -> None:
    native, runs = build_byte_level(), [("Ġ" * 2**power,) * 2 for power in range(7)]
    vocabulary = native.get_vocab(with_added_tokens=False)
    vocabulary |= {"".join(run): 1000 + number for number, run in enumerate(runs)}
    native.model = models.BPE(vocabulary, runs)
    assert count_least(native, " " * 1280) == 10
    text = "the stop b " * 1000
    assert count_least(native, text) > len(text) / 8


@pytest.mark.parametrize("native", [BYTE_LEVEL, SENTENCEPIECE, SPACES, COMPOSING])
@given(
    text=st.text()
    | TEXTS
    | st.text(st.sampled_from("\u1100\u1161\u11a8\u1fefthe \u0301\u0308\u1fbeeo\u2581"))
)
@example(text=SPACE * 159)
@settings(max_examples=150, deadline=None)
def test_no_text_has_fewer_tokens_than_its_bytes_tell(native: tokenizers.Tokenizer, text: str) -> None:
    assert count_least(native, text) <= len(native.encode(text, add_special_tokens=False).ids)


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
    assert find(native) is None


def test_another_kind_of_vocabulary_has_no_bound() -> None:
    assert find(tokenizers.Tokenizer(models.Unigram([("a", 0.0)], 0, byte_fallback=False))) is None
