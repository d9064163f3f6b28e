"""Both ends of a model: the embedding of tokens, and the head that scores them."""

from torch import Tensor

from millrace_kernels.step import Matrix, Step


class Embedding:
    """A table with a vector for each token."""

    def __init__(self, weight: Matrix) -> None:
        self.weight = weight

    def __call__(self, step: Step) -> Tensor:
        """Return the vectors of the step's tokens, [tokens, width]."""
        return step.embed(self.weight)


class Head:
    """Scores every token of the vocabulary, in float32 whatever the weights' type."""

    def __init__(self, weight: Matrix) -> None:
        self.weight = weight

    def __call__(self, hidden: Tensor, step: Step) -> Tensor:
        """Map hidden [rows, width] to float32 logits [rows, vocabulary]."""
        return step.logits(hidden, self.weight)
