"""Headers that somebody made up: one line, and never more tensors than the file's bytes hold."""

import json
import random
import struct
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from safetensors import SafetensorError, deserialize

from millrace_fit.errors import HeaderError
from millrace_fit.facts import find_facts
from millrace_fit.families.registry import name_tensors
from millrace_fit.files.headers import ITEM_BITS, StoredTensor, parse_header, read_length
from testing.checkpoints.models import MEDIUM
from tests.fit.quantized import AWQ
from tests.fit.raw_configs import FOUR_KV_HEADS, RAW

MOST_CHANGES = 3
TENSORS: dict[str, Any] = {
    "model.norm.weight": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]},
    "model.layers.0.mlp.down_proj.qweight": {"dtype": "I32", "shape": [2, 2], "data_offsets": [8, 24]},
    "model.layers.0.mlp.down_proj.scales": {"dtype": "F16", "shape": [1, 2], "data_offsets": [24, 28]},
    "a": {"dtype": "F8_E4M3", "shape": [2, 0, 3], "data_offsets": [28, 28]},
    "b": {"dtype": "F32", "shape": [], "data_offsets": [28, 32]},
}
DATA_BYTES = 32
VALUES: tuple[Any, ...] = (
    *(0, 1, 7, 8, 28, 32, -1, 2**31, 2**53, 2**63, 2**64, 10**30, 1.5, 1e308, float("nan")),
    *(True, None, "", "F32", "I32", "F8_E5M2", "\ud800", "a" * 300, [], {}, [0, 8], [2**40] * 60, [1] * 80),
)
WORDS = (*(bytes([one]) for one in b'{}[],:"- \n\xff'), b"\\u0000", b"NaN", b"1e999", b"9" * 30)
Mutate = Callable[[random.Random, dict[str, Any]], None]


def pick(chance: random.Random, *values: Any) -> Any:
    """One of them, with lists of its own: others change them."""
    return deepcopy(chance.choice(values))


def set_field(chance: random.Random, entries: dict[str, Any]) -> None:
    entry = chance.choice(list(entries.values()))
    if isinstance(entry, dict):
        entry[chance.choice(["dtype", "shape", "data_offsets", "more"])] = pick(chance, *VALUES)


def set_number(chance: random.Random, entries: dict[str, Any]) -> None:
    entry = chance.choice(list(entries.values()))
    numbers = entry.get(chance.choice(["shape", "data_offsets"])) if isinstance(entry, dict) else None
    if isinstance(numbers, list) and numbers:
        numbers[chance.randrange(len(numbers))] = pick(chance, *VALUES)


def set_entry(chance: random.Random, entries: dict[str, Any]) -> None:
    name = chance.choice([*entries, "__metadata__", "c", ""])
    entries[name] = pick(chance, *VALUES, *TENSORS.values())


def drop_entry(chance: random.Random, entries: dict[str, Any]) -> None:
    entries.pop(chance.choice(list(entries)))


def wrap(chance: random.Random, entries: dict[str, Any]) -> None:
    name = chance.choice(list(entries))
    for _ in range(chance.choice([1, 3, 200])):
        entries[name] = [entries[name]]


MUTATIONS: tuple[Mutate, ...] = (set_field, set_number, set_entry, drop_entry, wrap)


def make(chance: random.Random) -> bytes:
    """A file: a good one with a few changes to its header, its bytes, its length or its end."""
    entries = json.loads(json.dumps(TENSORS))
    for _ in range(chance.randrange(MOST_CHANGES)):
        if entries:
            chance.choice(MUTATIONS)(chance, entries)
    header = bytearray(json.dumps(entries).encode("utf-8", "surrogatepass"))
    for _ in range(chance.choice([0, 0, 0, 1, 2])):
        at = chance.randrange(len(header) + 1)
        header[at : at + chance.choice([0, 1, 8])] = chance.choice(WORDS)
    length = len(header) + chance.choice([0] * 12 + [1, -1, 2**40, 2**63])
    return (
        struct.pack("<Q", max(0, length))
        + bytes(header)
        + bytes(chance.choice([DATA_BYTES] * 9 + [0, 31, 64]))
    )


def parse(file: bytes) -> dict[str, StoredTensor]:
    end = 8 + read_length(file[:8], len(file))
    return parse_header(file[8:end], len(file))


def check(file: bytes, *, is_thorough: bool) -> bool:
    """Whether the file is read; otherwise a line says why not."""
    try:
        tensors = parse(file)
    except HeaderError as error:
        text = str(error)
        assert text.isprintable(), file
        assert len(text) < 300, file
        return False
    bits = sum(one.num_numbers * ITEM_BITS[one.dtype] for one in tensors.values())
    assert bits == 8 * (len(file) - 8 - int.from_bytes(file[:8], "little")), file
    if is_thorough:
        fault = find_facts(MEDIUM | {"quantization_config": AWQ}, tensors).fault
        assert fault is not None
        assert fault.isprintable(), file
        # A replica's reader must read what a look before it has accepted.
        deserialize(file)
    return True


@pytest.mark.parametrize(
    ("count", "seed"), [(600, 1), pytest.param(1_000_000, 2, marks=pytest.mark.long, id="long")]
)
def test_a_hostile_file_is_one_line(count: int, seed: int) -> None:
    chance, num_read = random.Random(seed), 0
    for number in range(count):
        num_read += check(make(chance), is_thorough=count < 1000 or number % 20 == 0)
    assert count / 20 < num_read < count / 2


def test_the_unchanged_file_is_read() -> None:
    header = json.dumps(TENSORS).encode()
    file = struct.pack("<Q", len(header)) + header + bytes(DATA_BYTES)
    assert parse(file).keys() == TENSORS.keys()
    deserialize(file)
    with pytest.raises(SafetensorError):
        deserialize(file[:-1])


def test_experts_without_number_are_not_listed() -> None:
    """A header of a hundred bytes may have a billion of them."""
    count = 10**9
    sizes = {"num_local_experts": count, "num_experts_per_tok": 2, "intermediate_size": 1}
    config = RAW | FOUR_KV_HEADS | sizes | {"architectures": ["GraniteMoeForCausalLM"]}
    joined = "model.layers.0.block_sparse_moe.input_linear.weight"
    stored = {joined: StoredTensor("BF16", (count, 2, RAW["hidden_size"]))}
    assert name_tensors(config, stored) == stored
    assert find_facts(config, stored).fault is not None
