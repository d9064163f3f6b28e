"""What a replica's model lies on."""

import msgspec


class Placement(msgspec.Struct, frozen=True, array_like=True):
    """On what a replica's model lies and in which numbers, as it was loaded and not as it was asked for."""

    device: str
    """"cpu" or "cuda"."""
    device_name: str
    """A GPU's own name. On CPUs what computes: "torch", or the instruction set of the native kernels."""
    dtype: str
    """Of the activations and the KV cache, and of the weights unless they are rounded: "bfloat16"."""
    weights: str
    """"FromCheckpoint", "Int8" or "Int4"."""
    tensor_parallel: int
    """Workers that hold the model together."""
