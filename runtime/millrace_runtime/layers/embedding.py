"""Both ends of a model: the embedding of tokens, and the head that scores them."""

from torch import Tensor

from millrace_kernels.step import Matrix, Shares, Step


class Embedding:
    """A table with a vector for each token; of several workers, each has some of the rows."""

    def __init__(self, weight: Matrix, shares: Shares | None = None) -> None:
        self.weight, self.shares = weight, shares

    def __call__(self, step: Step) -> Tensor:
        """Return the vectors of the step's tokens, [tokens, width]."""
        return step.embed(self.weight, self.shares)


class Head:
    """Scores every token of the vocabulary, in float32 whatever the weights' type."""

    def __init__(self, weight: Matrix, shares: Shares | None = None) -> None:
        self.weight, self.shares = weight, shares

    def __call__(self, hidden: Tensor, step: Step) -> Tensor:
        """Map hidden [rows, width] to float32 logits [rows, vocabulary]."""
        return step.logits(hidden, self.weight, self.shares)
