"""The layers of models. They hold weights and call kernels. They know no sequence, plan or file."""

import math

import torch
from torch import Tensor

from millrace_fit.rotary import (
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    RotaryScaling,
    YarnScaling,
)
from millrace_kernels.step import Angles, CacheLayer, HeadNorms, Heads, Routing, Step
from millrace_kernels.weights import Experts, Matrix, Shares


class Embedding:
    """A table with a vector for each token. Of several workers, each has some of the rows."""

    def __init__(self, weight: Matrix, shares: Shares | None = None) -> None:
        self.weight, self.shares = weight, shares

    def __call__(self, step: Step) -> Tensor:
        """Return the vectors of the step's tokens, [tokens, width]."""
        return step.embed(self.weight, self.shares)


class Head:
    """Scores every token of the vocabulary, in float32 for any type of weights."""

    def __init__(self, weight: Matrix, shares: Shares | None = None) -> None:
        self.weight, self.shares = weight, shares

    def __call__(self, hidden: Tensor, step: Step) -> Tensor:
        """Map hidden [rows, width] to float32 logits [rows, vocabulary]."""
        return step.logits(hidden, self.weight, self.shares)


class Linear:
    """y = x·Wᵀ + b. A row's result does not depend on how many rows there are."""

    def __init__(self, weight: Matrix) -> None:
        self.weight = weight

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """Map x [rows, inputs] to [rows, outputs]."""
        return step.linear(x, self.weight)

    def add_to(self, residual: Tensor, x: Tensor, step: Step) -> Tensor:
        """Return residual + y. The caller must not use the residual again."""
        return step.linear_add(x, self.weight, residual)

    def sum(self, x: Tensor, step: Step) -> Tensor:
        """Return the sum of all workers' y."""
        return step.linear_sum(x, self.weight)


class GatedLinear:
    """silu(gate(x)) * up(x), or with gelu: the weight has the gate's rows, then those of `up`."""

    def __init__(self, weight: Matrix, *, is_gelu: bool = False) -> None:
        self.weight, self.is_gelu = weight, is_gelu

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """Map x [rows, inputs] to [rows, outputs / 2]."""
        return step.linear_gelu_mul(x, self.weight) if self.is_gelu else step.linear_silu_mul(x, self.weight)


class Mixture:
    """A router chooses some gated MLPs for each row; the result is their weighted sum.

    With a `limit` each MLP clamps its gate and its factor to it.
    """

    def __init__(
        self, router: Matrix, routing: Routing, gate_up: Experts, down: Experts, limit: float | None = None
    ) -> None:
        self.router, self.routing = router, routing
        self.gate_up, self.down, self.limit = gate_up, down, limit

    def add_to(self, residual: Tensor, x: Tensor, step: Step) -> Tensor:
        """Return residual + y. The caller must not use the residual again."""
        routes = step.route(x, self.router, self.routing)
        h = step.experts_silu_mul(x, routes, self.gate_up, self.limit)
        return step.experts_add(h, routes, self.down, residual)


class RMSNorm:
    """Root-mean-square normalisation over the last axis, then a learned scale."""

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        self.weight = weight
        self.epsilon = epsilon

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """Map x [rows, width] to the same shape, in the model's type."""
        return step.rms_norm(x, self.weight, self.epsilon)


class Attention:
    """Normalises and rotates queries and keys if it has norms and angles, stores keys and values, attends.

    `sinks` [heads] have one more score for each head, which belongs to no token.
    """

    def __init__(
        self,
        layer: CacheLayer,
        heads: Heads,
        angles: Angles | None,
        norms: HeadNorms | None = None,
        scale: float | None = None,
        *,
        sinks: Tensor | None = None,
    ) -> None:
        self._layer, self._heads, self._angles, self._norms = layer, heads, angles, norms
        self._sinks = sinks
        self._scale = heads.head_dim**-0.5 if scale is None else scale

    def __call__(self, qkv: Tensor, step: Step) -> Tensor:
        """Map qkv [tokens, (heads + 2 kv_heads) * head_dim] to [tokens, heads * head_dim]."""
        query = step.rotary_kv_write(qkv, self._layer, self._heads, self._angles, self._norms)
        return step.attention(query, self._layer, self._heads, self._scale, self._sinks)


def rotary_angles(
    head_dim: int,
    theta: float,
    length: int,
    scaling: RotaryScaling | None,
    device: torch.device,
    *,
    rotary_dim: int | None = None,
) -> Angles:
    """Return the angles of positions 0 … length - 1 for `rotary_dim` numbers of a head, 0 for the others.

    The table is [2, length, head_dim / 2]: cosines, then sines.
    """
    frequencies = _frequencies(rotary_dim or head_dim, theta, length, scaling)
    turns = torch.outer(torch.arange(length, dtype=torch.float32), frequencies)
    table = torch.zeros((2, length, head_dim // 2))
    table[0] = 1.0
    turned = table[..., : len(frequencies)]
    torch.cos(turns, out=turned[0])
    torch.sin(turns, out=turned[1])
    if isinstance(scaling, YarnScaling | LongRopeScaling):
        turned *= scaling.magnitude
    return Angles(table.to(device))


def _frequencies(turned: int, theta: float, length: int, scaling: RotaryScaling | None) -> Tensor:
    """Return the angle of each pair of the `turned` dimensions at position 1."""
    exponents = torch.arange(0, turned, 2, dtype=torch.int64).float() / turned
    frequencies = 1.0 / theta**exponents
    match scaling:
        case None:
            return frequencies
        case LinearScaling(factor):
            return frequencies / factor
        case Llama3Scaling():
            return _stretch(frequencies, scaling)
        case YarnScaling():
            low, high = scaling.find_ramp(turned, theta)
            stretched = ((torch.arange(turned // 2) - low) / (high - low)).clamp(0.0, 1.0)
            return frequencies / scaling.factor * stretched + frequencies * (1.0 - stretched)
        case LongRopeScaling():
            return 1.0 / (torch.tensor(scaling.choose(length)) * theta**exponents)


def _stretch(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Keep wavelengths below length/high, divide those above length/low, and blend linearly between."""
    turns = scaling.original_length * frequencies / (2 * math.pi)
    span = scaling.high_frequency_factor - scaling.low_frequency_factor
    kept = ((turns - scaling.low_frequency_factor) / span).clamp(0.0, 1.0)
    return frequencies * kept + frequencies / scaling.factor * (1.0 - kept)
