"""How messages and token ids are encoded between processes.

A message is a frame: a 4-byte big-endian length, then a MessagePack body. Token ids are int32, little-endian,
one after the other: a prompt of 100,000 tokens is one copy of 400 kB, while a list of numbers is decoded one
by one.
"""

import sys
from array import array
from collections.abc import Iterable
from typing import Generic, TypeVar

import msgspec

Message = TypeVar("Message")
Number = TypeVar("Number", int, float)
MAX_FRAME_BYTES = 256 * 1024 * 1024
"""A longer frame means that the two ends no longer agree where frames begin."""
TOKEN_BYTES = 4
_encoder = msgspec.msgpack.Encoder()


class FrameError(Exception):
    """The peer sent bytes that are no frame. The connection is unusable."""


def encode_frame(message: object) -> bytes:
    """Return the message as one frame."""
    body = _encoder.encode(message)
    return len(body).to_bytes(4, "big") + body


class FrameDecoder(Generic[Message]):
    """Turns a stream's pieces, split anywhere, into messages of one (union) type."""

    def __init__(self, message_type: type[Message]) -> None:
        self._decoder = msgspec.msgpack.Decoder(message_type)
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """Add received bytes and return the messages that they complete. Raises FrameError."""
        self._buffer += data
        messages = []
        while (end := self._frame_end()) is not None:
            messages.append(self._decode(bytes(self._buffer[4:end])))
            del self._buffer[:end]
        return messages

    def _frame_end(self) -> int | None:
        if len(self._buffer) < 4:
            return None
        size = int.from_bytes(self._buffer[:4], "big")
        if size > MAX_FRAME_BYTES:
            raise FrameError(f"a frame of {size} bytes is over the limit of {MAX_FRAME_BYTES}")
        return 4 + size if len(self._buffer) >= 4 + size else None

    def _decode(self, body: bytes) -> Message:
        try:
            return self._decoder.decode(body)
        except msgspec.DecodeError as error:
            raise FrameError(f"a frame of {len(body)} bytes can't be decoded: {error}") from error


def pack_tokens(tokens: Iterable[int]) -> bytes:
    """Return the tokens as bytes. Raises OverflowError for a number that is no int32."""
    return _swap_on_big_endian(array("i", tokens)).tobytes()


def unpack_tokens(data: bytes) -> "array[int]":
    """Return the tokens that `pack_tokens` packed. Raises ValueError for a part of a token."""
    return _swap_on_big_endian(array("i", data))


def pack_floats(values: Iterable[float]) -> bytes:
    """Return the numbers as float32, little-endian."""
    return _swap_on_big_endian(array("f", values)).tobytes()


def unpack_floats(data: bytes) -> "array[float]":
    """Return the numbers that `pack_floats` packed."""
    return _swap_on_big_endian(array("f", data))


def count_tokens(data: bytes) -> int:
    """Return how many tokens `data` holds."""
    return len(data) // TOKEN_BYTES


def _swap_on_big_endian(numbers: "array[Number]") -> "array[Number]":
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
