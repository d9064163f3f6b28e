"""What a run is asked to do, and what it is not asked to do."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.runtime.figures import OURS
from benchmarks.runtime.peers import PEERS, START_ONLY
from benchmarks.runtime.workload import PRECISIONS

OURS_BY_FLAG = "ours"
ENGINES = (OURS_BY_FLAG, *(peer.name for peer in (*PEERS, START_ONLY)))
PARTS_OF_OURS = ("memory", "replicas", "rows", "grammars", "start")
"""These measure our engine, or compare with it: they are nothing without it."""
PARTS = ("single", "prefill", "c8", "c32", *PARTS_OF_OURS)
NOT_ASKED_FOR = "not asked for"


@dataclass(frozen=True)
class Choice:
    """What to run."""

    parts: tuple[str, ...]
    precisions: tuple[str, ...]
    engines: tuple[str, ...] | None
    """By name, ours as "ours". None: all that are there."""
    num_rounds: int
    is_quick: bool
    """Answers are short, so that a run shows only that everything works."""
    peers: Path | None
    """$PEERS."""

    def has_engine(self, name: str) -> bool:
        """Whether an engine is wanted."""
        return self.engines is None or (OURS_BY_FLAG if name == OURS else name) in self.engines

    def has_part(self, part: str) -> bool:
        """Whether a part is wanted, and can be had with the engines that are."""
        return part in self.parts and (part not in PARTS_OF_OURS or self.has_engine(OURS))

    def list_unwanted(self) -> Iterator[str]:
        """Yield the names of what the flags leave out."""
        yield from (f"part {part}" for part in PARTS if not self.has_part(part))
        yield from (f"precision {name}" for name in PRECISIONS if name not in self.precisions)
        yield from (f"engine {name}" for name in ENGINES if self.engines and name not in self.engines)
