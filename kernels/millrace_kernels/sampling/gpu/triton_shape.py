"""How the sampling kernels split their work.

`python -m benchmarks.gpu.sampling_sweep` times other numbers on a GPU. On an H200, 64 mixed rows of 128,256
tokens took 182 us with these numbers, 176 with chunks of 2,048 and 4 warps, and 200 and 216 with chunks of
8,192 and 16,384 and 16 warps. Plain rows took 74, 74, 88 and 88.
"""

from typing import NamedTuple


class Shape(NamedTuple):
    """The parts of a vocabulary, and how many tokens a program holds."""

    chunk: int = 4096
    """Tokens of a program: a row of the vocabulary is so many programs. A power of two."""
    chunk_warps: int = 8
    room: int = 4096
    """The candidates of a row that have memory. A row with more reads its logits again."""
    candidates: int = 512
    """Candidates read at a time, each compared with all bounds of a pass."""
    bounds: int = 16
    """Bounds tried in a pass: eight passes find one of 2^32 numbers."""
    draw_warps: int = 16
    marked: int = 1024
    """Biases or known tokens that a program marks at a time."""
    markers: int = 4
    """The number of programs that mark one row's biases or known tokens."""

    def count_chunks(self, vocabulary: int) -> int:
        """Return the programs of a row."""
        return -(-vocabulary // self.chunk)


SHAPE = Shape()
