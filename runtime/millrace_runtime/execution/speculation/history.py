"""The tokens of a sequence on the host, for those who guess the next ones."""

import numpy as np
from numpy.typing import NDArray


class History:
    """Every known token of one sequence: appended one by one, and read as one array."""

    def __init__(self, tokens: bytes) -> None:
        """`tokens` are packed (`protocol/encoding.py`)."""
        self._memory = np.frombuffer(tokens, dtype=np.int32)  # no copy: most sequences may never be read
        self._count = len(self._memory)
        self._recent: list[int] = []

    def append(self, tokens: list[int]) -> None:
        """Append tokens."""
        self._recent += tokens

    def read(self) -> NDArray[np.int32]:
        """Return all tokens, int32 [tokens], valid until the next `append`."""
        end = self._count + len(self._recent)
        if end > len(self._memory):
            grown = np.empty(2 * end, dtype=np.int32)
            grown[: self._count] = self._memory[: self._count]
            self._memory = grown
        if self._recent:
            self._memory[self._count : end] = self._recent
            self._count, self._recent = end, []
        return self._memory[:end]
