"""The bytes that a token stands for, in byte-level and SentencePiece's spelling."""

import re
from functools import cache

_BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")
_NUM_REMAPPED_FROM = 256
BYTE_PIECES = [f"<0x{byte:02X}>" for byte in range(256)]
"""SentencePiece's pieces for single bytes."""
SPACE = "\u2581"
"""SentencePiece's space."""


@cache
def byte_of_letter() -> dict[str, int]:
    """Return byte-level BPE's alphabet. Printable Latin-1 stands for itself; U+0100 and on are the others."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {chr(byte): byte for byte in printable}
    remapped = [byte for byte in range(256) if byte not in set(printable)]
    letters |= {chr(_NUM_REMAPPED_FROM + place): byte for place, byte in enumerate(remapped)}
    return letters


def spell_byte_level(piece: str) -> bytes:
    """Return the bytes of a byte-level piece; an added token outside the alphabet is plain text."""
    letters = byte_of_letter()
    try:
        return bytes([letters[letter] for letter in piece])
    except KeyError:
        return piece.encode()


def spell_sentencepiece(piece: str) -> bytes:
    """Return the bytes of a SentencePiece piece: `▁` is a space, `<0x0A>` one byte."""
    if match := _BYTE_PIECE.fullmatch(piece):
        return bytes([int(match[1], 16)])
    return piece.replace(SPACE, " ").encode()
