"""What the loader, the cache and the runner need to know of a model, whatever its architecture."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from millrace_kernels.step import Step
from millrace_runtime.models.weights import Weights


@dataclass(frozen=True, slots=True)
class KvShape:
    """What one layer keeps of each token: a key and a value for each KV head."""

    num_kv_heads: int
    head_dim: int


class Model(Protocol):
    """Tokens to hidden states, and hidden states to logits, in the operations of a step."""

    def forward(self, step: Step) -> Tensor:
        """Return the hidden states of the step's tokens, [tokens, width]."""

    def logits(self, hidden: Tensor, step: Step) -> Tensor:
        """Map chosen rows of the hidden states, [rows, width], to float32 logits [rows, vocabulary]."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """A checked config.json: its sizes, and the model that it describes."""

    vocabulary_size: int
    max_length: int
    """Positions that the model was trained for."""
    window: int | None
    """A token sees itself and the `window` - 1 before it; None: all. No model here computes one yet."""
    kv_shapes: tuple[KvShape, ...]
    """By layer."""
    build: Callable[[Weights, int], Model]
    """(weights, longest sequence to serve) to the model."""
