"""Counts the Triton kernels that are compiled in this process. Triton compiles one at its first launch."""

from typing import Any


class Compilations:
    """Counts from its making on."""

    def __init__(self) -> None:
        """Triton is imported here, so make it only where Triton computes."""
        from triton import knobs  # noqa: PLC0415  triton: only on GPUs

        self.count = 0
        knobs.runtime.jit_post_compile_hook = self._note

    def _note(self, **_: Any) -> None:
        self.count += 1
