"""The operations of a mixture of experts as one, with inputs and shapes."""

from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.arena import Arena
from benchmarks.gpu.inputs import Call
from millrace_kernels.device_kernels import ExpertKernels, select_kernels, select_triton
from millrace_kernels.step import Routing, Scoring

QWEN: dict[str, Any] = {"num_experts": 128, "num_chosen": 8, "inputs": 2048, "width": 768}
"""A layer of Qwen 3 with 30 billion weights, of which a token uses three."""
GPT_OSS: dict[str, Any] = {"num_experts": 32, "num_chosen": 4, "inputs": 2880, "width": 2880, "limit": 7.0}
"""A layer of gpt-oss with 20 billion weights: with biases and clamped gates."""
SHARED: dict[str, Any] = {"num_experts": 1, "num_chosen": 1, "scoring": "sigmoid", "is_normalised": False}
"""An expert that all tokens share, with a gate of its own."""
REAL: tuple[dict[str, Any], ...] = (
    *({"rows": rows, **QWEN} for rows in (1, 64, 512)),
    {"rows": 130, "num_experts": 8, "num_chosen": 2, "inputs": 4096, "width": 1792},
    {"rows": 33, "num_experts": 5, "num_chosen": 5, "inputs": 200, "width": 72},
    *({"rows": rows, **GPT_OSS} for rows in (1, 64)),
    {"rows": 64, "num_experts": 64, "num_chosen": 6, "inputs": 2048, "width": 1408, "scoring": "sigmoid"},
    {"rows": 33, "inputs": 2048, "width": 5632, **SHARED},
)
DRY: tuple[dict[str, Any], ...] = (
    {"rows": 3, "num_experts": 5, "num_chosen": 2, "inputs": 40, "width": 24},
    {"rows": 1, "num_experts": 3, "num_chosen": 3, "inputs": 20, "width": 12},
    {"rows": 3, "num_experts": 5, "num_chosen": 2, "inputs": 40, "width": 24, "limit": 0.7},
    {"rows": 3, "num_experts": 5, "num_chosen": 2, "inputs": 40, "width": 24, "scoring": "sigmoid"},
    {"rows": 3, "inputs": 40, "width": 24, **SHARED},
)


def make_experts(  # noqa: PLR0917  as the shapes name them
    arena: Arena,
    dtype: torch.dtype,
    rows: int,
    num_experts: int,
    num_chosen: int,
    inputs: int,
    width: int,
    limit: float | None = None,
    *,
    scoring: str = "softmax",
    is_normalised: bool = True,
) -> Call:
    """Make rows with their scores, and experts whose sums are about one; with a limit they have biases."""
    x, residual = (arena.normal((rows, inputs), dtype) for _ in range(2))
    scores = arena.normal((rows, num_experts), torch.float32)
    gates = arena.normal((num_experts, 2 * width, inputs), dtype, scale=inputs**-0.5)
    downs = arena.normal((num_experts, inputs, width), dtype, scale=width**-0.5)
    routing = Routing(num_chosen, Scoring(scoring), is_normalised)
    has_bias = limit is not None
    biases = [arena.normal((num_experts, size), dtype) if has_bias else None for size in (2 * width, inputs)]
    return Call((x, scores, gates, downs, residual, routing, biases, limit), changed=residual)


def _mix(kernels: ExpertKernels, x: Tensor, scores: Tensor, *others: Any) -> Tensor:
    gates, downs, residual, routing, (gate_bias, down_bias), limit = others
    choice = kernels.route(scores, routing)
    gated = kernels.silu_mul(x, choice, gates, gate_bias, limit)
    return kernels.add(gated, choice, downs, down_bias, residual)


def mix(*arguments: Any) -> Tensor:
    """Add the mixture to the residual, with the kernels for GPUs."""
    return _mix(select_triton().experts, *arguments)


def mix_reference(*arguments: Any) -> Tensor:
    """Add the mixture to the residual, in plain torch."""
    residual: Tensor = arguments[4]
    return residual.copy_(_mix(select_kernels(torch.device("cpu")).experts, *arguments))
