"""The fewest tokens that a text can have, if the tokenizer's file implies a number. Without tokenising it.

Take a byte, and the longest token with such a byte, of n bytes. The token that has the byte in a text is no
longer. So the byte counts as 1/n of a token, and a text has at least as many tokens as its bytes add up to.
Where that exceeds the model's limit, the text worker refuses the text without tokenising it, which takes
seconds and a gigabyte for 8 MiB. Only runs of spaces and of punctuation are in tokens of 64 bytes and more.
With Mistral's vocabulary of 131,072, 8 MiB of English prose have at least 353,000 tokens by this count, and
of Python at least 417,000.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from millrace_runtime.chat.tokenizer import BYTE_PIECES, SPACE, byte_of_letter

_NFC_SHRINKS = 4
"""Composing makes a text less than four times shorter: at most 7 bytes become 2 (U+1FBE U+0308 U+0301)."""
_LOSSLESS = ("ByteLevel", "Metaspace", "Digits", "Split")
"""Pre-tokenizers that drop nothing (Split: unless its behavior is Removed)."""
_Unit = TypeVar("_Unit", str, int)


class _Model(msgspec.Struct):
    type: str | None = None
    vocab: msgspec.Raw = msgspec.Raw(b"{}")
    byte_fallback: bool = False


class _Added(msgspec.Struct):
    content: str
    lstrip: bool = False
    rstrip: bool = False


class _File(msgspec.Struct):
    model: _Model
    normalizer: dict[str, Any] | None = None
    pre_tokenizer: dict[str, Any] | None = None
    added_tokens: list[_Added] = []


@dataclass(frozen=True)
class TextBound:
    """How long the tokens of a tokenizer are."""

    bytes_by_length: dict[int, bytes]
    """The bytes of text whose longest token has this length. Each byte has one length."""
    shrinkage: int = 1
    """How many times shorter a text may become before it is tokenised, unless it is ASCII."""

    def count_least_tokens(self, text: str) -> int:
        """Return how many tokens a text has at least. It takes 10 ms for each MiB."""
        rest = text.encode(errors="surrogatepass")
        if self.shrinkage > 1 and not text.isascii():
            return math.ceil(Fraction(len(rest), self.shrinkage * max(self.bytes_by_length)))
        least = Fraction(0)  # a float could be above the tokens of a text that just fits
        for length, members in self.bytes_by_length.items():
            num_bytes = len(rest)
            rest = rest.translate(None, members)
            least += Fraction(num_bytes - len(rest), length)
        return math.ceil(least)


def read_text_bound(model_path: Path) -> TextBound | None:
    """Return the bound for a model's folder; None if a text may have any number of tokens.

    The folder's tokenizer.json must be loadable.
    """
    return find_text_bound((model_path / "tokenizer.json").read_bytes())


def find_text_bound(tokenizer_json: bytes) -> TextBound | None:
    """Return the same as `read_text_bound`, for the file's content."""
    try:
        file = msgspec.json.decode(tokenizer_json, type=_File)
        vocabulary = msgspec.json.decode(file.model.vocab, type=dict[str, int])
    except msgspec.ValidationError:  # another kind of model has another kind of vocabulary
        return None
    pieces, shrinkage = _measure_pieces(file, vocabulary), _max_shrinkage(file.normalizer)
    if pieces is None or shrinkage is None or not _drops_nothing(file):
        return None
    # A text may spell a space of an added token as pieces do, in three bytes.
    added = _measure(added.content.replace(" ", SPACE).encode() for added in file.added_tokens)
    return TextBound(_group_bytes(pieces, added), shrinkage)


def _measure_pieces(file: _File, vocabulary: dict[str, int]) -> dict[int, int] | None:
    """Return the length of the longest piece by byte; None if a byte has none, so that text may be lost."""
    if file.model.type != "BPE":
        return None
    if file.model.byte_fallback:
        is_whole = all(piece in vocabulary for piece in BYTE_PIECES)
        # A text may also spell a space as the pieces do, in three bytes.
        return _measure(piece.encode() for piece in vocabulary) if is_whole else None
    spells_bytes = any(
        step.get("type") == "ByteLevel" for step in _steps(file.pre_tokenizer, "pretokenizers")
    )
    byte_of = byte_of_letter()
    if not spells_bytes or not all(letter in vocabulary for letter in byte_of):
        return None
    lengths = _measure(vocabulary)  # a letter is a byte
    return {byte: lengths[letter] for letter, byte in byte_of.items()}


def _measure(pieces: Iterable[Sequence[_Unit]]) -> dict[_Unit, int]:
    """Return the length of the longest piece by each letter or byte that is in one."""
    members: dict[int, set[_Unit]] = defaultdict(set)
    for piece in pieces:
        members[len(piece)].update(piece)
    longest: dict[_Unit, int] = {}
    for length in sorted(members):
        longest |= dict.fromkeys(members[length], length)
    return longest


def _group_bytes(*lengths: dict[int, int]) -> dict[int, bytes]:
    """Return the bytes by the length of their longest piece."""
    longest = {byte: max(1, *(known.get(byte, 1) for known in lengths)) for byte in range(256)}
    longest[ord(" ")] = max(longest.values())  # pieces may spell a space with another letter
    groups: dict[int, list[int]] = defaultdict(list)
    for byte, length in longest.items():
        groups[length].append(byte)
    return {length: bytes(members) for length, members in groups.items()}


def _drops_nothing(file: _File) -> bool:
    """Whether neither pre-tokenizing nor an added token removes text."""
    steps = _steps(file.pre_tokenizer, "pretokenizers")
    return (
        all(step.get("type") in _LOSSLESS for step in steps)
        and all(step.get("behavior") != "Removed" for step in steps)
        and not any(added.lstrip or added.rstrip for added in file.added_tokens)
    )


def _max_shrinkage(normalizer: dict[str, Any] | None) -> int | None:
    """Return how many times shorter a normalized text may be; None if there may be no maximum."""
    factor = 1
    for step in _steps(normalizer, "normalizers"):
        match step:
            case {"type": "NFC"}:
                factor *= _NFC_SHRINKS
            case {"type": "Prepend"} | {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}:
                continue
            case _:
                return None
    return factor


def _steps(part: dict[str, Any] | None, name: str) -> list[dict[str, Any]]:
    """Return the steps of a part that may be a sequence."""
    if part is None:
        return []
    steps: list[dict[str, Any]] = part.get(name, [part])
    return steps
