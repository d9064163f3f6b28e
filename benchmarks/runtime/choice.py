"""What a run is asked to do, and what it is not asked to do."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.runtime.figures import OURS
from benchmarks.runtime.models.subjects import PARTS_OF_OURS, Subject

OURS_BY_FLAG = "ours"
NOT_ASKED_FOR = "not asked for"


@dataclass(frozen=True)
class Choice:
    """What to run."""

    subject: Subject
    parts: tuple[str, ...]
    precisions: tuple[str, ...]
    engines: tuple[str, ...] | None
    """By name, ours as "ours". None: all that are there."""
    num_rounds: int
    is_quick: bool
    """Answers are short, so that a run shows only that everything works."""
    peers: Path | None
    """$PEERS."""
    former: str | None = None
    """The commit that ours is compared with."""

    def has_engine(self, name: str) -> bool:
        """Whether an engine is wanted."""
        flag = OURS_BY_FLAG if name == OURS else name
        return flag in (list_engines(self.subject) if self.engines is None else self.engines)

    def has_part(self, part: str) -> bool:
        """Whether a part is wanted, and can be had with the engines that are."""
        return part in self.parts and (part not in PARTS_OF_OURS or self.has_engine(OURS))

    def list_unwanted(self) -> Iterator[str]:
        """Yield the names of what the flags leave out."""
        subject = self.subject
        yield from (f"part {part}" for part in subject.parts if not self.has_part(part))
        yield from (f"precision {name}" for name in subject.precisions if name not in self.precisions)
        names = list_engines(subject)
        yield from (f"engine {name}" for name in names if self.engines and name not in self.engines)


def list_engines(subject: Subject) -> tuple[str, ...]:
    """Return the engines that can be compared, as the flags name them."""
    return (OURS_BY_FLAG, *subject.peers)
