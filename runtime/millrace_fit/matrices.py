"""A model's matrices, as one of several workers holds them, and the bytes of each as it is packed."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from millrace_fit.config import LlamaConfig
from millrace_fit.settings import Device
from millrace_fit.shard import Shard

GROUP: Final = 32
"""Inputs with one scale in INT4, and columns that workers share in: `linear/quantized_reference.py`."""
LANES: Final = 16
"""Outputs of a strip on CPUs: the last one is filled up with zeros (`native/strips.py`)."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight [outputs, inputs], and how many there are of it."""

    outputs: int
    inputs: int
    count: int
    has_bias: bool = False
    is_gated: bool = False
    """Whether the outputs are a gate's and its product's, each in strips of their own."""
    is_table: bool = False
    """Whether it is an embedding or a head, which are 8 bits where the others are 4."""


def list_matrices(config: LlamaConfig, shard: Shard) -> Iterator[Matrix]:
    """Yield what a worker holds, as `models/llama.py` cuts it.

    Raises ArchitectureError where the model can't be shared by so many.
    """
    width, layers, heads = (
        config.width,
        config.num_layers,
        shard.cut_heads(config.num_heads, config.num_kv_heads),
    )
    query, kv = heads.query.size * config.head_dim, heads.kv.size * config.head_dim
    mlp, rows = shard.cut(config.mlp_width, GROUP).size, shard.cut(config.vocabulary_size, 1).size
    adds_output, adds_mlp = (has and shard.is_first for has in (config.has_output_bias, config.has_mlp_bias))
    yield Matrix(query + 2 * kv, width, layers, has_bias=config.has_qkv_bias)
    yield Matrix(width, query, layers, has_bias=adds_output)
    yield Matrix(2 * mlp, width, layers, has_bias=config.has_mlp_bias, is_gated=True)
    yield Matrix(width, mlp, layers, has_bias=adds_mlp)
    yield Matrix(rows, width, 1 if config.is_tied else 2, is_table=True)


def matrix_bytes(matrix: Matrix, weights: str, item_bytes: int, device: Device) -> int:
    """Return the bytes of one such matrix with its bias, on a GPU or on the native path of a CPU.

    `weights` is one of WEIGHTS, `item_bytes` the served type's. Where torch has to compute on a CPU, rounded
    weights take more.
    """
    if device == "cuda":
        return item_bytes * (matrix.outputs * matrix.inputs + matrix.outputs * matrix.has_bias)
    return (
        _strip_bytes(matrix, weights, item_bytes) * _count_strips(matrix)
        + 4 * matrix.outputs * matrix.has_bias
    )


def _count_strips(matrix: Matrix) -> int:
    return 2 * -(-matrix.outputs // 2 // LANES) if matrix.is_gated else -(-matrix.outputs // LANES)


def _strip_bytes(matrix: Matrix, weights: str, item_bytes: int) -> int:
    groups = -(-matrix.inputs // GROUP)
    if weights == "Int4" and not matrix.is_table:
        return groups * (2 * LANES + GROUP // 2 * LANES)
    if weights in {"Int8", "Int4"}:
        return groups * GROUP * LANES + 4 * LANES
    return matrix.inputs * LANES * item_bytes
