"""Places registers in memory, which is reused after a register's last use.

Registers for other workers have places of their own in the exchange. There are three; exchange/README.md
explains why that is enough.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from millrace_kernels.native.recording.record import Recorded, Register

LINE = 64
NUM_PARTS = 3
"""The number of places of a worker in the exchange."""


@dataclass(frozen=True, slots=True)
class Place:
    """A register's rows in the workspace."""

    offset: int
    stride: int
    num_bytes: int


def compute_row_stride(register: Register) -> int:
    """Return the bytes from a row to the next: whole cache lines, and never a multiple of 1 KiB.

    Rows at such a distance share a few sets of the first-level cache, and a tile reads six rows at once.
    """
    width = max(register.width, register.widest)  # of all workers: they read each other's rows
    stride = -(-width * register.dtype.itemsize // LINE) * LINE
    return stride + LINE if stride % 1024 == 0 else stride


def place_parts(
    operations: Iterable[Recorded], num_tokens: int, num_drawn: int, *, shift: int = 0
) -> tuple[dict[Register, Place], int]:
    """Return the places of registers for other workers, and the bytes of a worker's memory for them.

    Consecutive exchanges have different places, also the last of a step and the first of the next step.
    With a `shift` of 1 each has the place of the exchange after it.
    """
    registers = [one.y for one in operations if one.y.exchange is not None]
    sizes = [_num_bytes(register, num_tokens, num_drawn) for register in registers]
    part = max(sizes, default=0)
    places = {
        register: Place(_choose_part(register.exchange + shift) * part, compute_row_stride(register), part)
        for register in registers
        if register.exchange is not None
    }
    return places, NUM_PARTS * part


def _choose_part(exchange: int) -> int:
    """Return 2 for a step's first exchange, then alternately 0 and 1."""
    return (exchange - 1) % 2 if exchange else 2


def _num_bytes(register: Register, num_tokens: int, num_drawn: int) -> int:
    return compute_row_stride(register) * (num_drawn if register.is_drawn else num_tokens)


def place_registers(
    operations: Iterable[Recorded], num_tokens: int, num_drawn: int, kept: Collection[Register]
) -> tuple[dict[Register, Place], int]:
    """Return the other registers' places, and the bytes of the workspace. `kept` ones keep their memory."""
    places: dict[Register, Place] = {}
    free: list[Place] = []
    end = 0
    for number, operation in enumerate(operations):
        if operation.y not in places and operation.y.exchange is None:
            stride = compute_row_stride(operation.y)
            num_bytes = _num_bytes(operation.y, num_tokens, num_drawn)
            # The smallest that fits. The first one that fits took 1.4 times the memory of bfloat16's steps,
            # because the next norm had the place of the gated product.
            fits = (place for place in free if place.num_bytes >= num_bytes)
            fitting = min(fits, key=lambda place: place.num_bytes, default=None)
            if fitting is not None:
                free.remove(fitting)
                places[operation.y] = Place(fitting.offset, stride, fitting.num_bytes)
            else:
                places[operation.y] = Place(end, stride, num_bytes)
                end += -(-num_bytes // LINE) * LINE
        # In this order, not in a set's: else the workspace's size would change from load to load.
        ended = dict.fromkeys(r for r in operation.registers if r in places and r.last_use == number)
        free += [places[register] for register in ended if register not in kept]
    return places, end
