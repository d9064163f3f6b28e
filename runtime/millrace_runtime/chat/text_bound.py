"""The maximum bytes of text for one token, if the tokenizer's file implies one.

A text with more bytes than this maximum times the model's limit can't fit. The text worker refuses it without
tokenising it, which takes seconds and a gigabyte for 8 MiB.
"""

from pathlib import Path
from typing import Any

import msgspec

from millrace_runtime.chat.tokenizer import BYTE_PIECES, byte_of_letter

_NFC_SHRINKS = 4
"""Composing makes a text less than four times shorter: at most 7 bytes become 2 (U+1FBE U+0308 U+0301)."""
_LOSSLESS = ("ByteLevel", "Metaspace", "Digits", "Split")
"""Pre-tokenizers that drop nothing (Split: unless its behavior is Removed)."""


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


def read_bytes_per_token(model_path: Path) -> int | None:
    """Return the maximum bytes of text for one token; None if there may be no maximum.

    The folder's tokenizer.json must be loadable.
    """
    return measure_bytes_per_token((model_path / "tokenizer.json").read_bytes())


def measure_bytes_per_token(tokenizer_json: bytes) -> int | None:
    """Return the same as `read_bytes_per_token`, for the file's content."""
    try:
        file = msgspec.json.decode(tokenizer_json, type=_File)
        vocabulary = msgspec.json.decode(file.model.vocab, type=dict[str, int])
    except msgspec.ValidationError:  # another kind of model has another kind of vocabulary
        return None
    longest, shrinkage = _longest_piece(file, vocabulary), _max_shrinkage(file.normalizer)
    if longest is None or shrinkage is None or not _drops_nothing(file):
        return None
    return shrinkage * max([longest, *(len(added.content.encode()) for added in file.added_tokens)])


def _longest_piece(file: _File, vocabulary: dict[str, int]) -> int | None:
    """Return the bytes of the longest piece; None if a byte has no piece, so that text may be lost."""
    if file.model.type != "BPE":
        return None
    if file.model.byte_fallback:
        is_whole = all(piece in vocabulary for piece in BYTE_PIECES)
        # A text may also spell a space as the pieces do, in three bytes.
        return max(len(piece.encode()) for piece in vocabulary) if is_whole else None
    spells_bytes = any(
        step.get("type") == "ByteLevel" for step in _steps(file.pre_tokenizer, "pretokenizers")
    )
    is_whole = spells_bytes and all(letter in vocabulary for letter in byte_of_letter())
    return max(map(len, vocabulary)) if is_whole else None  # a letter is a byte


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
