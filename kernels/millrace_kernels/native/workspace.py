"""Places registers in memory. After a register's last use its memory is another's."""

from collections.abc import Iterable
from dataclasses import dataclass

from millrace_kernels.native.recorder import Recorded, Register

LINE = 64


@dataclass(frozen=True, slots=True)
class Place:
    """A register's rows in the workspace."""

    offset: int
    stride: int
    num_bytes: int


def row_stride(register: Register) -> int:
    """Return the bytes from a row to the next: whole cache lines, and never a multiple of 1 KiB.

    Rows at such a distance fall into the same few sets of the first cache, and a tile reads six at once.
    """
    stride = -(-register.width * register.dtype.itemsize // LINE) * LINE
    return stride + LINE if stride % 1024 == 0 else stride


def place_registers(
    operations: Iterable[Recorded], num_tokens: int, num_drawn: int, kept: Register
) -> tuple[dict[Register, Place], int]:
    """Return every register's place, and the bytes of the workspace. The place of `kept` is not reused."""
    places: dict[Register, Place] = {}
    free: list[Place] = []
    end = 0
    for number, operation in enumerate(operations):
        if operation.y not in places:
            stride = row_stride(operation.y)
            num_bytes = stride * (num_drawn if operation.y.is_drawn else num_tokens)
            fitting = next((place for place in free if place.num_bytes >= num_bytes), None)
            if fitting is not None:
                free.remove(fitting)
                places[operation.y] = Place(fitting.offset, stride, fitting.num_bytes)
            else:
                places[operation.y] = Place(end, stride, num_bytes)
                end += -(-num_bytes // LINE) * LINE
        ended = {r for r in (operation.x, operation.y) if r is not None and r.last_use == number}
        free += [places[register] for register in ended if register is not kept]
    return places, end
