"""What loader, cache and runner know of a model, the same for every architecture."""

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
    """Computes hidden states from tokens, and logits from hidden states, by the operations of a step."""

    def forward(self, step: Step) -> Tensor:
        """Return the hidden states of the step's tokens, [tokens, width]."""

    def logits(self, hidden: Tensor, step: Step) -> Tensor:
        """Return float32 logits [rows, vocabulary] of chosen hidden states [rows, width]."""


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
    """Returns the model, given its weights and the longest sequence to serve."""
