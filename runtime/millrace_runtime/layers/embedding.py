"""Tokens in, logits out."""

from torch import Tensor
from torch.nn import functional

from millrace_runtime.layers.linear import Linear


class Embedding:
    """A table of one vector a token."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight

    def __call__(self, tokens: Tensor) -> Tensor:
        """Map tokens [rows] to [rows, width]."""
        return functional.embedding(tokens, self.weight)


class Head:
    """Scores every token of the vocabulary, in float32 whatever the weights' type."""

    def __init__(self, weight: Tensor) -> None:
        self._linear = Linear(weight)

    def __call__(self, hidden: Tensor) -> Tensor:
        """Map hidden [rows, width] to float32 logits [rows, vocabulary]."""
        return self._linear(hidden).float()
