"""How a reader writes the settings that a verdict names: as flags here, and others elsewhere."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Wording:
    """Each is a text with `{0}` in each place of the value."""

    weights: str
    """One of WEIGHTS."""
    max_model_length: str
    """In tokens."""
    max_batched_tokens: str
    gpus: str
    """On how many it fits."""
    memory: str
    """Of a pod on CPUs, in GiB."""
    workers: str
    """How many hold the model together."""


FLAGS: Final = Wording(
    weights="--weights {0}",
    max_model_length="--max-model-length {0}",
    max_batched_tokens="--max-batched-tokens {0}",
    gpus="on {0} of these GPUs",
    memory="{0} GiB",
    workers="--tensor-parallel {0}",
)
"""As `millrace serve` and `millrace size` take them."""
