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
    rotary_dim: int | None = None
    """The first numbers of a head, which are turned; None: all."""
    is_interleaved: bool = False
    """Whether files have the two numbers that are turned together as neighbours, not one in each half."""
    scale: float | None = None
    """Factor of scores; None: one over the root of `head_dim`."""
    theta: float | None = None
    """Base of its own rotary frequencies, without a scaling; None: the decoder's base and scaling."""
    has_sinks: bool = False
    """Whether each head has a score more, of no token, which takes a part of the weights."""

    @property
    def query(self) -> int:
        """The width of all query heads."""
        return self.num_heads * self.head_dim

    @property
    def kv(self) -> int:
        """The width of all key heads, and of all value heads."""
        return self.num_kv_heads * self.head_dim

    @property
    def head_order(self) -> tuple[int, ...] | None:
        """The stored rows of a head as kernels turn them, number i with i + head_dim / 2; None: as stored.

        Scores don't depend on the order, if queries and keys share it. Rows that are not turned follow those
        that are, in each half: their angle is 0.
        """
        turned = self.rotary_dim or self.head_dim
        if not self.has_rotary or (turned == self.head_dim and not self.is_interleaved):
            return None
        pairs = turned // 2
        first, second = range(pairs), range(pairs, turned)
        if self.is_interleaved:
            first, second = range(0, turned, 2), range(1, turned, 2)
        middle = (turned + self.head_dim) // 2
        return (*first, *range(turned, middle), *second, *range(middle, self.head_dim))


@dataclass(frozen=True, slots=True)
class MlpShape:
    """down(silu(gate(x)) * up(x))."""

    width: int
    has_bias: bool = False
    is_gelu: bool = False
    """Whether it has gelu, by tanh, instead of silu."""


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
    has_bias: bool = False
    """Of the router and of each expert's projections."""
    gate_limit: float | None = None
    """Of a clamped gate: g * sigmoid(1.702 * g) * (u + 1), g at most this and u within it; None: silu."""


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Attention and then an MLP, each with a norm before it and added to the residual after it."""

    attention: AttentionShape
    mlp: MlpShape | ExpertsShape
    is_normed_twice: bool = False
    """Whether what comes out has a norm too, before it is added. Not for experts."""


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
    embedding_factor: float = 1.0
    """Of the embedding's vectors."""
    output_factor: float = 1.0
    """Of all that a layer adds to the residual."""
    logit_factor: float = 1.0
    """Of the head's scores."""
    are_norms_less_one: bool = False
    """Whether files have the scales of norms less one."""

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
    runs = _find_runs([kinds.index(layer) for layer in layers])
    if len(kinds) > MOST_KINDS or len(runs) > MOST_RUNS:
        raise ArchitectureError(
            f"config.json has layers of {len(kinds)} kinds without a pattern of at most {MOST_PERIOD} layers "
            f"or {MOST_RUNS} runs, which is not supported"
        )
    return kinds, runs


def _find_runs(numbers: Sequence[int]) -> tuple[Run, ...]:
    """Return runs, each the pattern that covers most of the layers that are left, and the shortest such."""
    runs: list[Run] = []
    begin = 0
    while begin < len(numbers):
        left = numbers[begin:]
        run = max((_repeat(left, length) for length in range(1, MOST_PERIOD + 1)), key=_count_repeated)
        begin += len(run.kinds) * run.count
        if runs and runs[-1].count == run.count == 1 and len(runs[-1].kinds) < MOST_PERIOD:
            run = Run((*runs.pop().kinds, *run.kinds), 1)
        runs.append(run)
    return tuple(runs)


def _repeat(numbers: Sequence[int], length: int) -> Run:
    """Return the pattern of the first `length` layers as often as it follows itself."""
    pattern, count = tuple(numbers[:length]), 1
    while len(pattern) == length and tuple(numbers[count * length : (count + 1) * length]) == pattern:
        count += 1
    return Run(pattern, count)


def _count_repeated(run: Run) -> int:
    return len(run.kinds) * run.count if run.count > 1 else 0
