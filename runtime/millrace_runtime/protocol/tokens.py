"""Token ids as they cross processes: int32, little-endian, one after the other.

A prompt of 100,000 tokens is one copy of 400 kB so; as a list of numbers it is decoded one by one.
"""

import sys
from array import array
from collections.abc import Iterable

TOKEN_BYTES = 4


def pack_tokens(tokens: Iterable[int]) -> bytes:
    """Return the tokens as bytes. Raises OverflowError for a number that is no int32."""
    return _swap_on_big_endian(array("i", tokens)).tobytes()


def unpack_tokens(data: bytes) -> "array[int]":
    """Return the tokens that `pack_tokens` packed. Raises ValueError for a part of a token."""
    return _swap_on_big_endian(array("i", data))


def count_tokens(data: bytes) -> int:
    """Return how many tokens `data` holds."""
    return len(data) // TOKEN_BYTES


def _swap_on_big_endian(tokens: "array[int]") -> "array[int]":
    if sys.byteorder == "big":
        tokens.byteswap()
    return tokens
