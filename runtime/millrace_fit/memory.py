"""What a model takes of each device: its matrices, the KV cache, the tables, and the largest step."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from millrace_fit.config import LlamaConfig
from millrace_fit.dtypes import ITEM_BYTES
from millrace_fit.kv_cache import BLOCK_SIZE, block_numbers, count_blocks
from millrace_fit.settings import FROM_CHECKPOINT, Device, Settings
from millrace_fit.shard import Shard

GROUP: Final = 32
"""Inputs with one scale in INT4, and columns that workers share in: `linear/quantized_reference.py`."""
LANES: Final = 16
"""Outputs of a strip on CPUs: the last one is filled up with zeros (`native/strips.py`)."""
GPU_OVERHEAD: Final = 768 << 20
"""Of a GPU, before the weights: CUDA's context, loaded kernels, cuBLAS's memory, and what torch's allocator
rounds up. A guess, until `benchmarks/gpu` has run on a GPU and measured it."""
EXCHANGE_OVERHEAD: Final = 512 << 20
"""Of each GPU of several: NCCL's buffers. A guess too."""


@dataclass(frozen=True, slots=True)
class Weights:
    """A model in the numbers that it is served in, shared by so many devices."""

    config: LlamaConfig
    served_type: str
    settings: Settings

    @property
    def item_bytes(self) -> int:
        """Of a number of the served type."""
        return ITEM_BYTES[self.served_type]

    @property
    def shards(self) -> Iterator[Shard]:
        """The part of each device."""
        count = self.settings.tensor_parallel
        return (Shard(index, count) for index in range(count))

    def count_bytes(self, shard: Shard) -> int:
        """Return the bytes of a device's weights. Raises ArchitectureError where they can't be shared so."""
        matrices = sum(
            matrix.count * matrix_bytes(matrix, self.settings.weights, self.item_bytes, self.settings.device)
            for matrix in list_matrices(self.config, shard)
        )
        norms = (2 * self.config.num_layers + 1) * self.config.width
        return matrices + norms * self.item_bytes

    @property
    def most_bytes(self) -> int:
        """Of the device that has the most."""
        return max(self.count_bytes(shard) for shard in self.shards)

    @property
    def all_bytes(self) -> int:
        """Of all devices together."""
        return sum(self.count_bytes(shard) for shard in self.shards)

    @property
    def block_bytes(self) -> int:
        """Of a block of the KV cache over all layers, on the device that has the most KV heads."""
        heads = (shard.cut_heads(self.config.num_heads, self.config.num_kv_heads) for shard in self.shards)
        most = max(cut.kv.size for cut in heads)
        return block_numbers(self.config.num_layers, most, self.config.head_dim) * self.item_bytes

    @property
    def token_bytes(self) -> int:
        """Of the KV cache for each token, on that device."""
        return self.block_bytes // BLOCK_SIZE


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


_FLOAT, _LONG = 4, 8
_GROUP_BYTES = GROUP + 8
"""Of rounded inputs with their scale and sum, on CPUs (`native/abi.py`)."""
_NUMBERS_OF_A_TOKEN = 16
"""int64 on a GPU: its position, its slot, its place in the cache and such."""
_NUMBERS_OF_A_DRAW = 3
"""Of 4 bytes for each token of the vocabulary, where a draw takes all: counts, candidates, their ids."""


def tables_bytes(config: LlamaConfig, settings: Settings, length: int) -> int:
    """Return the bytes of the tables that grow with the longest sequence, of `length` tokens.

    They are the rotary angles (`layers.py`), and each slot's tokens and blocks (`execution/slots.py`).
    """
    angles = _FLOAT * length * config.head_dim
    return angles + settings.num_sequences * _LONG * (length + 1 + count_blocks(length))


def step_bytes(config: LlamaConfig, item_bytes: int, settings: Settings, shard: Shard, length: int) -> int:
    """Return the bytes of the largest step's results, and of those that may be in flight with it."""
    if settings.device == "cuda":
        return _step_on_gpu(config, item_bytes, settings, shard, length)
    return _step_on_cpu(config, item_bytes, settings, shard)


def _step_on_gpu(config: LlamaConfig, item_bytes: int, settings: Settings, shard: Shard, length: int) -> int:
    """As `execution/kv_cache.py` runs it: two steps, of which the first one still holds its logits."""
    num_rows = min(settings.num_sequences, settings.num_batched_tokens)
    num_tokens = num_rows * min(settings.num_batched_tokens // num_rows, length - 1)
    scores = num_rows * config.vocabulary_size
    layers = num_tokens * (item_bytes * _layer_numbers(config, shard) + _LONG * _NUMBERS_OF_A_TOKEN)
    head = scores * _head_bytes(item_bytes, shard)
    draw = scores * _FLOAT * (1 + _NUMBERS_OF_A_DRAW)
    return scores * _FLOAT + max(layers, head, draw)


def _layer_numbers(config: LlamaConfig, shard: Shard) -> int:
    """Return the numbers that a layer holds of each token at its peak.

    Beside the residual and the normed input these are the projections, rotated queries and the result of
    attention; or the gate with its product, and what comes of both. One worker adds to the residual in its
    place. Of several, a product, its sum and the residual before it are memory of their own.
    """
    heads, width = shard.cut_heads(config.num_heads, config.num_kv_heads), config.width
    query, kv = heads.query.size * config.head_dim, heads.kv.size * config.head_dim
    mlp = shard.cut(config.mlp_width, GROUP).size
    if shard.count == 1:
        return 2 * width + max(3 * query + 2 * kv, 3 * mlp)
    attention = 2 * width + max(3 * query + 2 * kv, query + 2 * width)
    return max(attention, 3 * width + max(3 * mlp, mlp + 2 * width))


def _head_bytes(item_bytes: int, shard: Shard) -> int:
    """Return the bytes of a score while it is made: in the served type, and in float32.

    Of several workers: the parts of all, and these side by side.
    """
    widened = 0 if item_bytes == _FLOAT else item_bytes
    return widened + _FLOAT if shard.count == 1 else 2 * _FLOAT


def _step_on_cpu(config: LlamaConfig, item_bytes: int, settings: Settings, shard: Shard) -> int:
    """As `native/workspace.py` places them: residual, its norm, projections, gated product, and logits.

    There are two places of a gated product's size, as the next norm takes the first one that is free. With
    rounded weights it takes that of rounded inputs.
    """
    heads, width = shard.cut_heads(config.num_heads, config.num_kv_heads), config.width
    projected = (heads.query.size + 2 * heads.kv.size) * config.head_dim
    mlp = shard.cut(config.mlp_width, GROUP).size
    is_rounded = settings.weights != FROM_CHECKPOINT
    beside = _GROUP_BYTES * width // GROUP if is_rounded else item_bytes * mlp
    of_token = _FLOAT * width + item_bytes * (width + projected + mlp) + beside
    return settings.num_batched_tokens * of_token + settings.num_sequences * config.vocabulary_size * _FLOAT
