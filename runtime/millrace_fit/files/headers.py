"""The header of a safetensors file: its tensors' names, types and shapes, from bytes.

The file begins with the header's length in 8 bytes, little-endian. Then come the header in JSON, and the
numbers of all tensors without gaps: https://github.com/huggingface/safetensors#format
"""

import json
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from millrace_fit.errors import HeaderError

LENGTH_BYTES: Final = 8
MAX_HEADER_BYTES: Final = 100_000_000
"""As in safetensors' own reader."""
MAX_TENSORS: Final = 1_000_000
MAX_DIMENSIONS: Final = 64
MAX_COUNT: Final = 2**64 - 1
"""Of bytes, and of rows and columns."""
ITEM_BITS: Final[Mapping[str, int]] = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64,
}  # fmt: skip
"""By the type of a number."""


class StoredTensor(NamedTuple):
    """A tensor in a file."""

    dtype: str
    """The type's name in the header, such as BF16."""
    shape: tuple[int, ...]
    place: str | None = None
    """The name of the tensor that it is a part of, or that it has in the file; None: it has its own name."""

    @property
    def num_numbers(self) -> int:
        """The count of its numbers."""
        return math.prod(self.shape)


class _Place(NamedTuple):
    begin: int
    end: int
    name: str


def read_length(first: bytes, file_bytes: int) -> int:
    """Return the header's length, by the first 8 bytes of a file and its size. Raises HeaderError."""
    if len(first) < LENGTH_BYTES:
        raise HeaderError(f"it has {len(first)} bytes, too few for a safetensors file")
    length = int.from_bytes(first[:LENGTH_BYTES], "little")
    if length > MAX_HEADER_BYTES:
        raise HeaderError(f"its header would have {length} bytes, and the limit is {MAX_HEADER_BYTES}")
    if LENGTH_BYTES + length > file_bytes:
        raise HeaderError(
            f"its header would have {length} bytes, and the file has {file_bytes}: it is cut short"
        )
    return length


def parse_header(header: bytes, file_bytes: int) -> dict[str, StoredTensor]:
    """Return a file's tensors by name. Their numbers must fill the rest of the file. Raises HeaderError."""
    entries = _read_json(header)
    _check_metadata(entries.pop("__metadata__", None))
    if len(entries) > MAX_TENSORS:
        raise HeaderError(f"it has {len(entries)} tensors, and the limit is {MAX_TENSORS}")
    tensors, places = dict[str, StoredTensor](), list[_Place]()
    for name, entry in entries.items():
        tensors[name], place = _read_entry(name, entry)
        places.append(place)
    _check_places(places, file_bytes - LENGTH_BYTES - len(header))
    return tensors


def _read_json(header: bytes) -> dict[str, Any]:
    try:
        text = header.decode()  # from bytes, json would guess UTF-16 as well
        entries = json.loads(
            text, object_pairs_hook=_read_object, parse_constant=_refuse_constant, parse_int=_read_int
        )
        if "\\ud" in text.lower():  # a half of a pair of surrogates is no text
            json.dumps(entries, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise HeaderError("its header is no JSON") from error
    if not isinstance(entries, dict):
        raise HeaderError("its header is no JSON object")
    return entries


def _read_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON. Raises HeaderError if it has a name twice: readers take either."""
    read = dict(pairs)
    if len(read) != len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise HeaderError(f"its header has {twice[:80]!r} twice")
    return read


def _read_int(digits: str) -> int:
    """Return a number. -0 is no count, as for safetensors' own reader."""
    return -1 if digits == "-0" else int(digits)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _check_metadata(metadata: Any) -> None:
    texts = {} if metadata is None else metadata
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
        raise HeaderError("its __metadata__ is no object of texts")


def _read_entry(name: str, entry: Any) -> tuple[StoredTensor, _Place]:
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
    except (KeyError, TypeError, ValueError) as error:
        raise HeaderError(f"it lacks the type, the shape or the place of the tensor {name[:80]!r}") from error
    if not isinstance(shape, list) or not all(_is_count(number) for number in (*shape, begin, end)):
        raise HeaderError(f"it lacks the type, the shape or the place of the tensor {name[:80]!r}")
    if not isinstance(dtype, str) or dtype not in ITEM_BITS:
        raise HeaderError(f"the tensor {name[:80]!r} has the unknown type {str(dtype)[:20]!r}")
    tensor = StoredTensor(dtype, tuple(shape))
    if len(shape) > MAX_DIMENSIONS or tensor.num_numbers > MAX_COUNT:
        raise HeaderError(
            f"the tensor {name[:80]!r} has more than {MAX_DIMENSIONS} dimensions or {MAX_COUNT} numbers"
        )
    if (end - begin) * 8 != tensor.num_numbers * ITEM_BITS[dtype]:
        raise HeaderError(
            f"the tensor {name[:80]!r} of {tensor.num_numbers} numbers in {dtype} has {end - begin} bytes"
        )
    return tensor, _Place(begin, end, name)


def _is_count(value: Any) -> bool:
    """Whether it is a count that 64 bits hold."""
    return type(value) is int and 0 <= value <= MAX_COUNT


def _check_places(places: list[_Place], data_bytes: int) -> None:
    """Raise HeaderError unless the tensors follow each other and fill the file."""
    position = 0
    for place in sorted(places):
        if place.begin != position:
            how = "overlaps another one" if place.begin < position else "leaves a gap before it"
            raise HeaderError(f"the tensor {place.name[:80]!r} {how}, at byte {min(position, place.begin)}")
        position = place.end
    if position != data_bytes:
        raise HeaderError(
            f"its tensors have {position} bytes and the file has {data_bytes} for them: it is cut short"
        )
