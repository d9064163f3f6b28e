"""What a replica is asked for, as far as its memory depends on it, and the defaults of that."""

from dataclasses import dataclass
from typing import Final, Literal

Device = Literal["cpu", "cuda"]
MAX_SEQUENCES: Final[dict[Device, int]] = {"cpu": 32, "cuda": 256}
"""Sequences computed at the same time, where nobody asks for another number."""
MAX_BATCHED_TOKENS: Final[dict[Device, int]] = {"cpu": 512, "cuda": 4096}
"""Tokens computed in one step, where nobody asks for another number."""
WEIGHTS: Final = ("FromCheckpoint", "Int8", "Int4")
"""How matrices are kept: as the files have them, or rounded while they are loaded."""
FROM_CHECKPOINT: Final = WEIGHTS[0]


@dataclass(frozen=True, slots=True)
class Settings:
    """The flags of `millrace serve` that its memory depends on."""

    device: Device = "cuda"
    weights: str = FROM_CHECKPOINT
    """One of WEIGHTS."""
    tensor_parallel: int = 1
    """Devices that hold the model together."""
    max_model_length: int | None = None
    """Tokens of prompt and output together; None: the model's own, or what fits."""
    max_sequences: int | None = None
    """None: the device's default."""
    max_batched_tokens: int | None = None
    """None: the device's default, or a token for each sequence where that is more."""

    @property
    def num_sequences(self) -> int:
        """Sequences computed at the same time."""
        return self.max_sequences or MAX_SEQUENCES[self.device]

    @property
    def num_batched_tokens(self) -> int:
        """Tokens computed in one step."""
        return self.max_batched_tokens or max(MAX_BATCHED_TOKENS[self.device], self.num_sequences)


def can_round(device: Device) -> bool:
    """Whether a device has kernels for rounded weights."""
    return device == "cpu"
