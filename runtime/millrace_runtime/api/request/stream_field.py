"""Whether a body asks for a stream, before the text worker has read it. Pure."""

import msgspec


class _Stream(msgspec.Struct):
    """The one field of a body that counts before the others are read."""

    stream: bool | None = None


def asks_for_stream(data: bytes | bytearray) -> bool:
    """Whether a body asks for a stream; False for one that can't be read.

    It skips the rest: 2 ms for 8 MiB of text, 21 ms for as many token ids.
    """
    try:
        return bool(msgspec.json.decode(data, type=_Stream).stream)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
