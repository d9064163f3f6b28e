"""What a look at an image may cost. Pure."""

MAX_FETCHED_BYTES = 64 << 20
"""From the registry, of all layers: some seconds of a usual network. It brings the headers of 500 files, or
all layers of a small base image, or what a compressed layer has before the weights."""
MAX_UNPACKED_BYTES = 2 << 30
"""Of compressed layers: some seconds of a CPU. A layer that comes whole may grow to less, so that one which
grows without end is told of by name."""
MAX_KEPT_BYTES = 32 << 20
"""In memory, of names, small files and headers. Those of the largest model that is served have 1 MB."""


class EnoughError(Exception):
    """A look has cost what it may. What it has seen counts; the rest is not known."""


class Allowance:
    """Bytes that may be spent."""

    def __init__(self, num_bytes: int) -> None:
        self.left = num_bytes

    def spend(self, num_bytes: int) -> None:
        """Take so many. Raises EnoughError where there are not as many left."""
        if num_bytes > self.left:
            raise EnoughError
        self.left -= num_bytes


class Budget:
    """What is left of a look."""

    def __init__(self) -> None:
        self.fetched = Allowance(MAX_FETCHED_BYTES)
        self.unpacked = Allowance(MAX_UNPACKED_BYTES)
        self.kept = Allowance(MAX_KEPT_BYTES)
