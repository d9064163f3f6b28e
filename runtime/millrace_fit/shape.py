"""The shape of a decoder: what its layers are made of, as a family declares it. All else follows from it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from millrace_fit.errors import ArchitectureError
from millrace_fit.rotary import RotaryScaling

MOST_KINDS: Final = 4
"""Different layers of one model."""
MOST_RUNS: Final = 6
MOST_PERIOD: Final = 12


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Grouped-query attention: `num_kv_heads` divides `num_heads`."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None = None
    """A token sees itself and the `window` - 1 before it; None: all before it."""
    has_rotary: bool = True
    """Whether queries and keys are turned by their positions."""
    has_head_norms: bool = False
    """Whether each head of queries and keys is normalised before it is turned."""
    has_bias: bool = False
    """Of the projections of queries, keys and values."""
    has_output_bias: bool = False

    @property
    def query(self) -> int:
        """The width of all query heads."""
        return self.num_heads * self.head_dim

    @property
    def kv(self) -> int:
        """The width of all key heads, and of all value heads."""
        return self.num_kv_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class MlpShape:
    """down(silu(gate(x)) * up(x))."""

    width: int
    has_bias: bool = False


@dataclass(frozen=True, slots=True)
class ExpertsShape:
    """A mixture: each token goes to the `num_chosen` gated MLPs that its router likes best."""

    num_experts: int
    num_chosen: int
    width: int
    """Of each expert."""
    is_normalised: bool = False
    """Whether the chosen ones' probabilities are divided by their sum."""
    shared_width: int | None = None
    """Of an expert to which each token also goes, weighted by a gate of its own; None: there is none."""


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Attention and then an MLP, each with a norm before it and added to the residual after it."""

    attention: AttentionShape
    mlp: MlpShape | ExpertsShape


@dataclass(frozen=True, slots=True)
class Run:
    """Layers that repeat."""

    kinds: tuple[int, ...]
    """Numbers of the shape's kinds, in the order of the layers."""
    count: int
    """How many times."""


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """A decoder of tokens: an embedding, layers, a norm and a head."""

    vocabulary_size: int
    width: int
    epsilon: float
    """Added to the mean square in each norm."""
    theta: float
    """Base of the rotary frequencies."""
    scaling: RotaryScaling | None
    max_length: int
    """Positions that the model was trained for."""
    is_tied: bool
    """Whether the head shares the embedding's weight."""
    kinds: tuple[LayerShape, ...]
    runs: tuple[Run, ...]

    @property
    def num_layers(self) -> int:
        """The count of all layers."""
        return sum(len(run.kinds) * run.count for run in self.runs)

    @property
    def layers(self) -> Iterator[LayerShape]:
        """Each layer, the first one first."""
        return (self.kinds[kind] for kind in self.kind_numbers)

    @property
    def kind_numbers(self) -> Iterator[int]:
        """The number of each layer's kind, the first layer first."""
        return (kind for run in self.runs for _ in range(run.count) for kind in run.kinds)

    @property
    def counted(self) -> Iterator[tuple[LayerShape, int]]:
        """Each kind of layer, with the count of such layers."""
        for number, kind in enumerate(self.kinds):
            yield kind, sum(run.kinds.count(number) * run.count for run in self.runs)

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The windows of the layers, each once, and None first: each is a KV group."""
        found = {kind.attention.window for kind in self.kinds}
        return tuple(sorted(found, key=lambda window: (window is not None, window)))


def describe_layers(layers: Sequence[LayerShape]) -> tuple[tuple[LayerShape, ...], tuple[Run, ...]]:
    """Return the kinds and the runs of layers. Raises ArchitectureError for layers without a pattern."""
    kinds = tuple(dict.fromkeys(layers))
    numbers = [kinds.index(layer) for layer in layers]
    runs = _find_period(numbers) or _find_runs(numbers)
    if len(kinds) > MOST_KINDS or len(runs) > MOST_RUNS:
        raise ArchitectureError(
            f"config.json has layers of {len(kinds)} kinds without a pattern of at most {MOST_PERIOD} layers "
            f"or {MOST_RUNS} runs, which is not supported"
        )
    return kinds, runs


def _find_period(numbers: Sequence[int]) -> tuple[Run, ...]:
    """Return the shortest pattern that repeats, and the rest of the last repetition; empty without one."""
    for length in range(1, min(MOST_PERIOD, len(numbers)) + 1):
        if all(number == numbers[place % length] for place, number in enumerate(numbers)):
            count, left = divmod(len(numbers), length)
            whole = Run(tuple(numbers[:length]), count)
            return (whole, Run(tuple(numbers[:left]), 1)) if left else (whole,)
    return ()


def _find_runs(numbers: Sequence[int]) -> tuple[Run, ...]:
    runs: list[Run] = []
    for number in numbers:
        if runs and runs[-1].kinds == (number,):
            runs[-1] = Run((number,), runs[-1].count + 1)
        else:
            runs.append(Run((number,), 1))
    return tuple(runs)
