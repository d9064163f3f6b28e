"""What a model takes of each device, by parts."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from millrace_fit.config import LlamaConfig
from millrace_fit.dtypes import ITEM_BYTES
from millrace_fit.kv_cache import BLOCK_SIZE, block_numbers
from millrace_fit.matrices import list_matrices, matrix_bytes
from millrace_fit.settings import Settings
from millrace_fit.shard import Shard

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
