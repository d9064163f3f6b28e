"""Counts the Triton kernels that this process compiles. Triton compiles a kernel at its first launch."""

from typing import Any


class Compilations:
    """Counts from its construction."""

    def __init__(self) -> None:
        """Imports Triton, so construct it only where Triton computes."""
        from triton import knobs  # noqa: PLC0415  triton: only on GPUs

        self.count = 0
        knobs.runtime.jit_post_compile_hook = self._note

    def _note(self, **_: Any) -> None:
        self.count += 1
