"""Mixtures of experts in plain torch: the definition, and the torch path on CPUs."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from millrace_kernels.linear.reference import linear_reference
from millrace_kernels.silu_mul.reference import silu_mul_reference
from millrace_kernels.step import Routing, Scoring

SLOPE = 1.702
"""Of the sigmoid in clamped gates, as gpt-oss has it (OpenAI, 2025)."""
Multiply = Callable[[int, Tensor], Tensor]
"""Takes an expert's number and rows [any, inputs]. Returns the rows' products [any, outputs]."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The experts of each row, in ascending order of their numbers."""

    experts: Tensor
    """int32 [rows, num_chosen]"""
    weights: Tensor
    """float32 [rows, num_chosen]"""

    @property
    def num_chosen(self) -> int:
        """The experts of a row."""
        return self.experts.shape[1]


def route_reference(scores: Tensor, routing: Routing) -> Choice:
    """Choose the highest of scores [rows, experts], of equal ones the first, and weigh them in float32."""
    wide = scores.float()
    by_score = wide.sort(dim=1, descending=True, stable=True).indices
    experts = by_score[:, : routing.num_chosen].sort(dim=1).values
    is_softmax = routing.scoring is Scoring.SOFTMAX
    weights = (wide.softmax(dim=1) if is_softmax else wide.sigmoid()).gather(1, experts)
    if routing.is_normalised:
        total = weights[:, 0]
        for rank in range(1, routing.num_chosen):  # one by one: torch's own order depends on the rows
            total = total + weights[:, rank]
        weights = weights / total[:, None]
    return Choice(experts.to(torch.int32), weights)


def multiply_dense(weight: Tensor, bias: Tensor | None = None) -> Multiply:
    """Return products with weight [experts, outputs, inputs] and bias [experts, outputs]."""
    return lambda expert, rows: linear_reference(rows, weight[expert], None if bias is None else bias[expert])


def clamped_mul_reference(gate_up: Tensor, limit: float) -> Tensor:
    """Return gate * sigmoid(SLOPE * gate) * (up + 1), of gates up to the limit and factors within it."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return (gate / (1.0 + (gate * -SLOPE).exp()) * (up + 1.0)).to(gate_up.dtype)


def experts_silu_mul_reference(
    x: Tensor, routes: Choice, multiply: Multiply, limit: float | None = None
) -> Tensor:
    """Return silu(gate) * up of each row's experts side by side, [rows, num_chosen * width] in x's type.

    With a limit it is `clamped_mul_reference`.
    """
    gate = silu_mul_reference if limit is None else partial(clamped_mul_reference, limit=limit)
    results = [
        (rows, ranks, gate(multiply(expert, x[rows]).to(x.dtype))) for expert, rows, ranks in _group(routes)
    ]
    width = results[0][2].shape[1]
    y = x.new_empty(x.shape[0], routes.num_chosen, width)
    for rows, ranks, result in results:
        y[rows, ranks] = result
    return y.flatten(1)


def experts_add_reference(h: Tensor, routes: Choice, multiply: Multiply, residual: Tensor) -> Tensor:
    """Return the residual [rows, outputs] plus each expert's weighted product, one after the other.

    h [rows, num_chosen * inputs]. The sum is float32, and rounded once to the residual's type.
    """
    parts, total = h.view(h.shape[0], routes.num_chosen, -1), residual.to(torch.float32, copy=True)
    for expert, rows, ranks in _group(routes):
        product = multiply(expert, parts[rows, ranks]).float()
        total[rows] += routes.weights[rows, ranks, None] * product
    return total.to(residual.dtype)


def _group(routes: Choice) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield each chosen expert, ascending, with the rows that chose it and its rank in each."""
    for expert in sorted(set(routes.experts.flatten().tolist())):
        rows, ranks = (routes.experts == expert).nonzero(as_tuple=True)
        yield expert, rows, ranks
