"""What the largest step takes beside weights and KV cache."""

from millrace_fit.config import LlamaConfig
from millrace_fit.kv_cache import count_blocks
from millrace_fit.matrices import GROUP
from millrace_fit.settings import FROM_CHECKPOINT, Settings
from millrace_fit.shard import Shard

_FLOAT, _LONG = 4, 8
_GROUP_BYTES = GROUP + 8
"""Of rounded inputs with their scale and sum, on CPUs (`native/abi.py`)."""
_NUMBERS_OF_A_TOKEN = 16
"""int64 on a GPU: its position, its slot, its place in the cache and such."""
_NUMBERS_OF_A_DRAW = 3
"""Of 4 bytes for each token of the vocabulary, where a draw takes all: counts, candidates, their ids."""


def tables_bytes(config: LlamaConfig, settings: Settings, length: int) -> int:
    """Return the bytes of the tables that grow with the longest sequence, of `length` tokens.

    They are the rotary angles (`layers/rotary.py`), and each slot's tokens and blocks (`execution/slots.py`).
    """
    angles = _FLOAT * length * config.head_dim
    return angles + settings.num_sequences * _LONG * (length + 1 + count_blocks(length))


def step_bytes(config: LlamaConfig, item_bytes: int, settings: Settings, shard: Shard, length: int) -> int:
    """Return the bytes of the largest step's results, and of those that may be in flight with it."""
    if settings.device == "cuda":
        return _step_on_gpu(config, item_bytes, settings, shard, length)
    return _step_on_cpu(config, item_bytes, settings, shard)


def _step_on_gpu(config: LlamaConfig, item_bytes: int, settings: Settings, shard: Shard, length: int) -> int:
    """As `execution/largest_step.py` runs it: two steps, of which the first one still holds its logits."""
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
