"""What the measurements of our own server share."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.runtime.bystanders import Bystanders
from benchmarks.runtime.client import Dialect
from benchmarks.runtime.engines import ServerEngine
from benchmarks.runtime.errors import UnsupportedError
from benchmarks.runtime.ours import has_flag, our_server

Found = dict[str, Any]
"""Figures by name, as the result has them."""


@dataclass(frozen=True)
class Setting:
    """Where and how often something is measured."""

    model: Path
    folder: Path
    """For logs and models."""
    num_rounds: int
    bystanders: Bystanders
    is_quick: bool

    def require(self, flag: str) -> None:
        """Raise UnsupportedError where `millrace serve` has no such flag."""
        if not has_flag(flag):
            raise UnsupportedError(f"`millrace serve` has no {flag}")

    @contextlib.contextmanager
    def start(
        self,
        name: str = "plain",
        *,
        flags: Sequence[str] = (),
        dialect: Dialect | None = None,
        model: Path | None = None,
    ) -> Iterator[ServerEngine]:
        """Start our server with more flags, and stop it where it is. `name` is that of its logs' folder.

        Raises EngineError.
        """
        logs = self.folder / name
        logs.mkdir(exist_ok=True)
        with our_server(model or self.model, "bf16", flags=flags, dialect=dialect).start(logs) as engine:
            assert isinstance(engine, ServerEngine)
            engine.pause()
            yield engine
