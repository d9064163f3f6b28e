"""The part `kernels`: each operation beside its definition, in guarded memory, and row by row."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.arena import Arena, Guarded
from benchmarks.gpu.bench import Bench, Step
from benchmarks.gpu.cases import OPERATIONS, Function, Operation, Shape
from benchmarks.gpu.inputs import Call
from benchmarks.gpu.rows import Check, Row

LARGEST_GUARDED = 1 << 21
"""Numbers of the first argument, at most, in a check that copies everything: larger ones show nothing new."""


@dataclass(frozen=True)
class Case:
    """An operation with one shape in one type."""

    operation: Operation
    function: Function
    """What the product launches."""
    bench: Bench
    shape: Shape
    dtype: torch.dtype

    @property
    def label(self) -> str:
        """The case's name."""
        told = [f"{name}={_brief(value)}" for name, value in self.shape.items()]
        return " ".join([*told, str(self.dtype).removeprefix("torch.")])

    @property
    def bound(self) -> float:
        """How far each number may be off."""
        return self.operation.bounds[self.dtype]

    def make(self, arena: Arena | None = None) -> Call:
        """Make the inputs, the same each time."""
        return self.operation.make(arena or Arena(self.bench.where), self.dtype, **self.shape)

    def run(self, function: Function, call: Call) -> Tensor:
        """Return what a function makes of the inputs."""
        return call.read(function(*call.arguments))


CheckCase = Callable[[Case], Check | None]
"""Returns None where the case has nothing to check."""


def over_cases(check: CheckCase, name: str, bench: Bench) -> Iterator[Row]:
    """Check one operation over its shapes and types. A case that raises fails, and the next one runs."""
    operation = OPERATIONS[name]
    function = operation.launch()
    for shape in bench.sized(operation.shapes.real, operation.shapes.dry):
        for dtype in operation.bounds:
            case = Case(operation, function, bench, shape, dtype)
            try:
                row = check(case)
            except Exception as error:  # noqa: BLE001  such as a kernel that takes more memory than there is
                row = Check(case.label, holds=False, facts={"error": f"{type(error).__name__}: {error}"})
            if row is not None:
                yield row


def check_agreement(case: Case) -> Check:
    """Compare an operation with its definition."""
    found, expected = (case.run(one, case.make()) for one in (case.function, case.operation.reference))
    return compare(case.label, found, expected, case.bound)


def compare(label: str, found: Tensor, expected: Tensor, bound: float) -> Check:
    """Return whether each number is within the bound, absolute and relative, and the whole is too.

    The whole's error is over its size, because small numbers may all be wrong within an absolute bound.
    NaN equals NaN.
    """
    mine, theirs = found.double(), expected.double()
    if mine.shape != theirs.shape:
        return Check(label, holds=False, facts={"shapes": [list(mine.shape), list(theirs.shape)]})
    is_nan = mine.isnan() | theirs.isnan()
    is_alike = mine.isnan() == theirs.isnan()
    errors = torch.where(is_nan, 0.0, (mine - theirs).abs())
    known = torch.where(is_nan, 0.0, theirs)
    wrong = ~is_alike | (errors > bound + bound * known.abs())
    overall = float(errors.norm() / known.norm().clamp(min=1e-30))
    facts = {
        "largest_error": float(errors.max()),
        "overall_error": overall,
        "bound": bound,
        "num_wrong": int(wrong.sum()),
    }
    holds = not wrong.any() and overall <= bound
    return Check(label, holds, facts | _first_wrong(wrong, mine, theirs))


def _first_wrong(wrong: Tensor, mine: Tensor, theirs: Tensor) -> dict[str, Any]:
    """Return where the first wrong number is, and both sides' numbers there."""
    if not wrong.any():
        return {}
    place = tuple(int(number) for number in wrong.nonzero()[0])
    found, expected = (str(side[place].item()) for side in (mine, theirs))
    return {"first_wrong": list(place), "found": found, "expected": expected}


def check_memory(case: Case) -> Check | None:
    """Run an operation where each tensor has margins, and what it allocates is NaN before."""
    arena = Arena(case.bench.where)
    call = case.make(arena)
    if math.prod(call.arguments[0].shape) > LARGEST_GUARDED:
        return None
    inputs = [one.clone() for one in _kept(call)]
    with Guarded(arena):
        found = case.run(case.function, call)
    row = compare(case.label, found, case.run(case.operation.reference, case.make()), case.bound)
    spoilt = arena.count_spoilt()
    changed = sum(not _same_bits(one, was) for one, was in zip(_kept(call), inputs, strict=True))
    facts = {**row.facts, "margins_spoilt": spoilt, "inputs_changed": changed}
    return Check(row.name, row.holds and not spoilt and not changed, facts)


def _kept(call: Call) -> list[Tensor]:
    """Return the arguments that the operation may not change: all but those with its result."""
    return [one for one in call.tensors() if one is not call.changed and one is not call.noted]


def check_bits(case: Case) -> Check | None:
    """Compare a row's bits alone and in a batch."""
    pick, call = case.operation.pick, case.make()
    if pick is None or call.num_rows == 1:
        return None
    whole = case.run(case.function, call)
    rows = sorted({0, 1, call.num_rows // 2, call.num_rows - 1})
    alone = {row: case.run(case.function, pick(call, row)) for row in rows}
    differing = [row for row in rows if not _same_bits(alone[row], call.rows(whole, row))]
    return Check(case.label, not differing, {"rows": rows, "rows_that_differ": differing})


def _same_bits(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors have the same bytes, so that a NaN equals itself."""
    return torch.equal(*(each.contiguous().flatten().view(torch.uint8) for each in (one, other)))


def _brief(value: Any) -> str:
    """Return a value. A long list is shown as its length and its largest number."""
    if isinstance(value, list) and len(value) > 4:
        return f"{len(value)}x<={max(value)}"
    return str(value).replace(" ", "")


STEPS: dict[str, Step] = {
    **{f"{name} agrees": partial(over_cases, check_agreement, name) for name in OPERATIONS},
    **{f"{name} memory": partial(over_cases, check_memory, name) for name in OPERATIONS},
    **{f"{name} bits": partial(over_cases, check_bits, name) for name, one in OPERATIONS.items() if one.pick},
}
