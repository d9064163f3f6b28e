"""What a replica says of itself, to clients and to probes."""

import msgspec

from millrace_runtime.protocol.messages import EngineReady

Description = dict[str, str | int]


def describe_replica(ready: EngineReady) -> Description:
    """Return what the replica computes with, and how much it holds."""
    return {
        **msgspec.structs.asdict(ready.placement),
        "kv_cache_tokens": ready.kv_tokens,
        "kv_cache_blocks": ready.num_blocks,
        "block_size": ready.block_size,
        "max_model_length": ready.max_model_length,
        "max_sequences": ready.max_sequences,
    }
