"""The settings of a replica on which its memory depends, and their defaults."""

from dataclasses import dataclass
from typing import Final, Literal

Device = Literal["cpu", "cuda"]
MAX_SEQUENCES: Final[dict[Device, int]] = {"cpu": 32, "cuda": 256}
"""The default number of sequences computed at the same time."""
MAX_BATCHED_TOKENS: Final[dict[Device, int]] = {"cpu": 512, "cuda": 4096}
"""The default number of tokens computed in one step."""
WEIGHTS: Final = ("FromCheckpoint", "Int8", "Int4")
"""The formats of matrices: as in the files, or rounded while they are loaded."""
FROM_CHECKPOINT: Final = WEIGHTS[0]
KV_CACHES: Final = ("Model", "Fp8", "Int8")
"""The formats of the KV cache: the model's own type, or 8 bits with a scale for each token and head."""
MODEL_TYPE, FP8_CACHE, INT8_CACHE = KV_CACHES


@dataclass(frozen=True, slots=True)
class Settings:
    """The flags of `millrace serve` that its memory depends on."""

    device: Device = "cuda"
    weights: str = FROM_CHECKPOINT
    """One of WEIGHTS."""
    kv_cache: str = MODEL_TYPE
    """One of KV_CACHES."""
    tensor_parallel: int = 1
    """Devices that share the model."""
    max_model_length: int | None = None
    """Tokens of prompt and output together; None: the model's own limit, or as many as fit."""
    max_sequences: int | None = None
    """None: the device's default."""
    max_batched_tokens: int | None = None
    """None: the device's default, or a token for each sequence if that is more."""

    @property
    def num_sequences(self) -> int:
        """Sequences computed at the same time."""
        return self.max_sequences or MAX_SEQUENCES[self.device]

    @property
    def num_batched_tokens(self) -> int:
        """Tokens computed in one step."""
        return self.max_batched_tokens or max(MAX_BATCHED_TOKENS[self.device], self.num_sequences)


@dataclass(frozen=True, slots=True)
class Wording:
    """The text for each setting, with `{0}` for its value: a command's flag, or a field of a resource."""

    weights: str
    """One of WEIGHTS."""
    kv_cache: str
    """One of KV_CACHES."""
    max_model_length: str
    """In tokens."""
    max_batched_tokens: str
    gpus: str
    """The number of GPUs on which the model fits."""
    memory: str
    """The memory of a pod on CPUs, in GiB."""
    workers: str
    """The number of workers that share the model."""


FLAGS: Final = Wording(
    weights="--weights {0}",
    kv_cache="--kv-cache {0}",
    max_model_length="--max-model-length {0}",
    max_batched_tokens="--max-batched-tokens {0}",
    gpus="on {0} of these GPUs",
    memory="{0} GiB",
    workers="--tensor-parallel {0}",
)
"""As `millrace serve` and `millrace size` take them."""


def refuse_cache(form: str, device: Device) -> str | None:
    """Return why a device has no kernels for a KV cache of this format; None if it has."""
    return "a KV cache in Fp8 has kernels for GPUs only" if form == FP8_CACHE and device == "cpu" else None


def can_round(device: Device) -> bool:
    """Whether a device has kernels for rounded weights."""
    return device == "cpu"
