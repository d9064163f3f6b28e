"""One generation as the scheduler sees it: tokens, how far they are computed, and where they lie."""

import enum
from dataclasses import dataclass, field

from millrace_runtime.protocol.messages import FINISH_LENGTH, FINISH_STOP, Generate


class State(enum.Enum):
    """Where a sequence stands."""

    WAITING = "waiting"  # holds nothing
    RUNNING = "running"  # has a slot and blocks
    ENDED = "ended"  # its last output is out, or it was aborted


TRANSITIONS: dict[State, frozenset[State]] = {
    State.WAITING: frozenset({State.RUNNING, State.ENDED}),
    State.RUNNING: frozenset({State.WAITING, State.ENDED}),  # back to waiting: preempted
    State.ENDED: frozenset(),
}


@dataclass(frozen=True)
class Tenancy:
    """A sequence's hold of a slot; the epoch tells its results from those of the slot's former tenant."""

    slot: int
    epoch: int


@dataclass(eq=False)
class Sequence:
    """One generation. The scheduler alone changes it."""

    request: Generate
    age: int
    """Order of arrival: the smallest is the oldest."""
    max_length: int
    """Prompt and output together end here."""
    outputs: list[int] = field(default_factory=list)
    """Generated tokens that have been collected."""
    state: State = State.WAITING
    tenancy: Tenancy | None = None
    blocks: list[int] = field(default_factory=list)
    num_computed: int = 0
    """Tokens whose KV is in `blocks` once every submitted step has run."""
    num_pending: int = 0
    """Tokens that submitted steps will draw and that are not collected yet: the executor knows them."""

    @property
    def num_known(self) -> int:
        """Tokens the executor will know once every submitted step has run."""
        return len(self.request.prompt) + len(self.outputs) + self.num_pending

    @property
    def num_uncomputed(self) -> int:
        """Known tokens that no submitted step computes; at least 1 while another token is wanted."""
        return self.num_known - self.num_computed

    @property
    def wants_row(self) -> bool:
        """Whether another step would bring it forward: its last token is not drawn or being drawn."""
        return self.num_known < self.max_length

    @property
    def is_decoding(self) -> bool:
        """Whether its next row is one token that draws the next."""
        return self.wants_row and self.num_uncomputed == 1

    @property
    def is_prefilling(self) -> bool:
        """Whether several known tokens are still to be computed."""
        return self.wants_row and self.num_uncomputed > 1

    def move_to(self, state: State) -> None:
        """Change the state along TRANSITIONS."""
        assert state in TRANSITIONS[self.state], f"{self.state} -> {state}"
        self.state = state

    def forget_computed(self) -> None:
        """Drop what lies on the device. Tokens being drawn there are drawn again, the same ones."""
        self.tenancy = None
        self.blocks = []
        self.num_computed = 0
        self.num_pending = 0

    def take_token(self, token: int) -> str | None:
        """Append a collected token, and return the finish reason if it was the last."""
        self.num_pending -= 1
        self.outputs.append(token)
        if token in self.request.stop_token_ids:
            return FINISH_STOP
        is_full = len(self.request.prompt) + len(self.outputs) >= self.max_length
        return FINISH_LENGTH if is_full else None
