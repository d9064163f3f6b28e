"""A model's memory on each device: its matrices, the KV cache, the tables, and the largest step."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from millrace_fit.files.dtypes import ITEM_BYTES
from millrace_fit.kv_budget import BLOCK_SIZE, CacheGroup, block_bytes, count_blocks, count_bytes
from millrace_fit.matrices import list_matrices, matrix_bytes, product_bytes, vector_bytes
from millrace_fit.module_schemes import ModuleSchemes
from millrace_fit.modules import GROUP
from millrace_fit.quantization.scheme import Kind
from millrace_fit.settings import FROM_CHECKPOINT, Settings
from millrace_fit.shape import AttentionShape, DecoderShape, ExpertsShape, LayerShape
from millrace_fit.shard import Shard

GPU_OVERHEAD: Final = 768 << 20
"""On a GPU, before the weights: CUDA's context, loaded kernels, cuBLAS's memory, and the rounding of torch's
allocator. An estimate, until `benchmarks/gpu` has measured it on a GPU."""
EXCHANGE_OVERHEAD: Final = 512 << 20
"""On each GPU of several: NCCL's buffers. An estimate too."""


@dataclass(frozen=True, slots=True)
class Weights:
    """A model's weights in their served type, shared by the devices of the settings."""

    shape: DecoderShape
    served_type: str
    settings: Settings
    quantized: Sequence[ModuleSchemes] = ()
    """How the checkpoint quantises them."""

    @property
    def rounds_inputs(self) -> bool:
        """Whether a CPU's products round their inputs."""
        if self.settings.weights != FROM_CHECKPOINT:
            return True
        kinds = {scheme.kind for one in self.quantized for scheme in one.schemes if scheme is not None}
        return not kinds.isdisjoint({Kind.INT8, Kind.INT4})

    @property
    def item_bytes(self) -> int:
        """Bytes of a number in the served type."""
        return ITEM_BYTES[self.served_type]

    @property
    def shards(self) -> Iterator[Shard]:
        """The part of each device."""
        count = self.settings.tensor_parallel
        return (Shard(index, count) for index in range(count))

    def count_product_bytes(self, shard: Shard, num_rows: int) -> int:
        """Return the most bytes that a product with a quantised matrix takes on a GPU beside its results."""
        matrices = list_matrices(self.shape, shard, self.quantized)
        return max((product_bytes(matrix, num_rows, self.item_bytes) for matrix in matrices), default=0)

    def count_bytes(self, shard: Shard) -> int:
        """Return the bytes of a device's weights. Raises ArchitectureError if they can't be shared so."""
        weights, item_bytes, device = self.settings.weights, self.item_bytes, self.settings.device
        matrices = sum(
            matrix.count * matrix_bytes(matrix, weights, item_bytes, device)
            for matrix in list_matrices(self.shape, shard, self.quantized)
        )
        return matrices + vector_bytes(self.shape, shard, item_bytes)

    @property
    def most_bytes(self) -> int:
        """Bytes on the device that has the most."""
        return max(self.count_bytes(shard) for shard in self.shards)

    @property
    def all_bytes(self) -> int:
        """Bytes on all devices together."""
        return sum(self.count_bytes(shard) for shard in self.shards)

    @property
    def groups(self) -> tuple[CacheGroup, ...]:
        """The KV groups, with a block's bytes on the device with the most KV heads."""
        return tuple(CacheGroup(self._count_block(window), window) for window in self.shape.windows)

    def _count_block(self, window: int | None) -> int:
        """Return the bytes of a block over all layers with this window."""
        return max(self._count_block_of(shard, window) for shard in self.shards)

    def _count_block_of(self, shard: Shard, window: int | None) -> int:
        form = self.settings.kv_cache
        return sum(
            block_bytes(count, _cut_kv_heads(heads, shard), heads.head_dim, self.item_bytes, form)
            for heads, count in ((layer.attention, count) for layer, count in self.shape.counted)
            if heads.window == window
        )

    def count_cache(self, num_sequences: int, length: int) -> int:
        """Return the bytes of the KV cache that so many sequences fill, on that device."""
        tokens = self.settings.num_batched_tokens
        num_blocks = [group.count_blocks(num_sequences, length, tokens) for group in self.groups]
        return count_bytes(self.groups, num_blocks)

    @property
    def token_bytes(self) -> int:
        """Bytes of the KV cache for each token within all windows, on that device."""
        return sum(group.block_bytes for group in self.groups) // BLOCK_SIZE


def _cut_kv_heads(attention: AttentionShape, shard: Shard) -> int:
    return shard.cut_heads(attention.num_heads, attention.num_kv_heads).kv.size


_FLOAT, _LONG = 4, 8
_GROUP_BYTES = GROUP + 12
"""Of a group of rounded inputs with its scale and sums, on CPUs (`native/abi.py`)."""
_NUMBERS_OF_A_TOKEN = 16
"""int64 on a GPU: the token's position, slot, place in the cache and the like."""
_CANDIDATES = 4096
_BUCKETS_BYTES, _DIGITS_BYTES = 1024, 3200
_CHUNK, _CHUNK_BYTES = 4096, 1064
"""Of the most expensive draw on a GPU, beside a mark of 4 bytes for each token of the vocabulary: candidates
with their ids, buckets and digits of a row, and buckets and sums of each chunk of its vocabulary
(`sampling/gpu/triton_kernel.py`)."""
_NUM_BIASES = 2048
"""Of a slot: 1,024 that a request asks for, and 1,024 for tokens that it holds back (`protocol/sampling.py`).
"""


def tables_bytes(shape: DecoderShape, settings: Settings, length: int) -> int:
    """Return the bytes of the tables beside weights and KV cache, for sequences of up to `length` tokens.

    They are the rotary angles (`layers.py`), and each slot's tokens, blocks, biases and mask
    (`execution/slots.py`).
    """
    angles = _FLOAT * length * _find_angles(shape)
    blocks, mask = len(shape.windows) * count_blocks(length), 4 * -(-shape.vocabulary_size // 32)
    numbers = length + 1 + blocks + _NUM_BIASES
    return angles + settings.num_sequences * (_LONG * numbers + mask)


def step_bytes(weights: Weights, shard: Shard, length: int) -> int:
    """Return the bytes of the largest step's results, and of the results in flight with it."""
    if weights.settings.device == "cuda":
        return _step_on_gpu(weights, shard, length)
    return _step_on_cpu(weights, shard)


def _step_on_gpu(weights: Weights, shard: Shard, length: int) -> int:
    """The step of `execution/kv_cache.py`: two are in flight, and the first one still holds its logits."""
    shape, item_bytes, settings = weights.shape, weights.item_bytes, weights.settings
    num_rows = min(settings.num_sequences, settings.num_batched_tokens)
    num_tokens = num_rows * min(settings.num_batched_tokens // num_rows, length - 1)
    scores = num_rows * shape.vocabulary_size
    product = max(_product_numbers(shape.width, kind, shard) for kind in shape.kinds)
    layers = max(
        num_tokens * item_bytes * _layer_numbers(shape, shard),
        num_tokens * item_bytes * product + weights.count_product_bytes(shard, num_tokens),
    )
    layers += num_tokens * _LONG * _NUMBERS_OF_A_TOKEN
    head = scores * _head_bytes(item_bytes, shard)
    found = _BUCKETS_BYTES + _DIGITS_BYTES + _CHUNK_BYTES * -(-shape.vocabulary_size // _CHUNK)
    draw = 2 * scores * _FLOAT + num_rows * (2 * _FLOAT * _CANDIDATES + found)
    return scores * _FLOAT + max(layers, head, draw)


def _find_angles(shape: DecoderShape) -> int:
    """Return the angles of each position in all tables, twice: a cosine and a sine for each."""
    kinds = (kind.attention for kind in shape.kinds if kind.attention.has_rotary)
    return sum(head_dim for head_dim, _, _ in {(one.head_dim, one.rotary_dim, one.theta) for one in kinds})


def _layer_numbers(shape: DecoderShape, shard: Shard) -> int:
    """Return the count of numbers that the largest kind of layer holds for each token at its peak."""
    return max(_kind_numbers(shape.width, kind, shard) for kind in shape.kinds)


def _kind_numbers(width: int, layer: LayerShape, shard: Shard) -> int:
    """Return the count of numbers that a layer holds for each token at its peak.

    Beside the residual and the normed input these are the projections, rotated queries and the result of
    attention; or `gate`, `up` and their product. A single worker adds to the residual in place. With several,
    a product, its sum and, unless the sum is normed, the previous residual have memory of their own.
    """
    query, kv = _cut_attention(layer.attention, shard)
    sums = 0 if shard.count == 1 else 1
    mlps = [
        # A mixture multiplies gates at once, and has the products of all chosen experts before their sum.
        mlp + (times + sums) * width if times else max(3 * mlp, mlp + 2 * sums * width)
        for mlp, times in _cut_mlps(layer, shard)
    ]
    attention = max(3 * query + 2 * kv, query + 2 * sums * width)
    kept = 2 if layer.is_normed_twice else 2 + sums
    return max(2 * width + attention, kept * width + max(mlps))


def _product_numbers(width: int, layer: LayerShape, shard: Shard) -> int:
    """Return the count of numbers that a layer holds for each token while it multiplies, at most.

    Fewer than at its peak, so that what a quantised product takes beside them may need no more memory.
    Experts take nothing beside them.
    """
    query, kv = _cut_attention(layer.attention, shard)
    ((mlp, _),) = ((0, 0),) if isinstance(layer.mlp, ExpertsShape) else _cut_mlps(layer, shard)
    kept, sums = (2, 1) if shard.count == 1 else (3, 2)
    return kept * width + max(2 * mlp, query + 2 * kv, max(query, mlp) + sums * width)


def _head_bytes(item_bytes: int, shard: Shard) -> int:
    """Return the bytes of a score during its computation: in the served type, and in float32.

    With several workers: all parts and their concatenation, and the worker's own part twice.
    """
    widened = 0 if item_bytes == _FLOAT else item_bytes
    return widened + _FLOAT if shard.count == 1 else 2 * _FLOAT + -(-2 * _FLOAT // shard.count)


def _step_on_cpu(weights: Weights, shard: Shard) -> int:
    """The buffers of `native/workspace.py`: residual, its norm, projections, gated product, and logits.

    With rounded weights there are those of rounded inputs, too.
    """
    shape, item_bytes, settings = weights.shape, weights.item_bytes, weights.settings
    width = shape.width
    parts = [_cut_attention(kind.attention, shard) for kind in shape.kinds]
    projected = max(query + 2 * kv for query, kv in parts)
    mlps = {mlp for kind in shape.kinds for mlp, _ in _cut_mlps(kind, shard)}
    beside = _GROUP_BYTES * width // GROUP if weights.rounds_inputs else 0
    of_token = _FLOAT * width + item_bytes * (width + projected + sum(mlps)) + beside
    of_token += max(_count_routing(kind) for kind in shape.kinds)
    if weights.rounds_inputs:
        of_token += max(_count_rounded(kind, shard, item_bytes * projected) for kind in shape.kinds)
    if any(kind.is_normed_twice for kind in shape.kinds):
        of_token += _FLOAT * width  # what comes out, before its norm
    return settings.num_batched_tokens * of_token + settings.num_sequences * shape.vocabulary_size * _FLOAT


def _count_rounded(layer: LayerShape, shard: Shard, free: int) -> int:
    """Return the bytes of a token's rounded inputs of the MLP's output, or of all its experts' outputs.

    An MLP's take no memory of their own if they fit where the projections were, in `free` bytes.
    """
    parts = ((max(1, times), mlp) for mlp, times in _cut_mlps(layer, shard))
    rounded = max(_GROUP_BYTES * times * -(-mlp // times // GROUP) for times, mlp in parts)
    return rounded if rounded > free or isinstance(layer.mlp, ExpertsShape) else 0


def _count_routing(layer: LayerShape) -> int:
    """Return the bytes of a token's scores, chosen experts and their weights."""
    if not isinstance(layer.mlp, ExpertsShape):
        return 0
    return _FLOAT * (layer.mlp.num_experts + 2 * layer.mlp.num_chosen)


def _cut_attention(attention: AttentionShape, shard: Shard) -> tuple[int, int]:
    """Return the widths of a worker's query heads and KV heads."""
    heads = shard.cut_heads(attention.num_heads, attention.num_kv_heads)
    return heads.query.size * attention.head_dim, heads.kv.size * attention.head_dim


def _cut_mlps(layer: LayerShape, shard: Shard) -> Iterator[tuple[int, int]]:
    """Yield the width of a worker's part of the MLP, and 0; or of all experts of a token, and their count.

    A shared expert is a mixture of one.
    """
    if not isinstance(layer.mlp, ExpertsShape):
        yield shard.cut(layer.mlp.width, GROUP).size, 0
        return
    yield layer.mlp.num_chosen * shard.cut(layer.mlp.width, GROUP).size, layer.mlp.num_chosen
    if layer.mlp.shared_width is not None:
        yield shard.cut(layer.mlp.shared_width, GROUP).size, 1
