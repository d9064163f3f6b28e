"""The engine's plan for one step and the executor's result of it.

The scheduler decides which blocks and how many tokens; the executor owns what lies on the device:
block tables, token ids, lengths, penalty counts. A *slot* is a sequence's place on the device; its
*epoch* tells one tenant of the slot from the next, so a late result of a former tenant is dropped.
"""

import msgspec

from millrace_runtime.protocol.sampling import Sampling


class SlotStart(msgspec.Struct, frozen=True, array_like=True):
    """Places a sequence in a slot. It takes effect before the step's rows run."""

    slot: int
    epoch: int
    tokens: list[int]
    """Every token known so far: the prompt, and after a preemption also the generated ones."""
    num_computed: int
    """Tokens whose KV already lies in `blocks` (a prefix hit); 0 without one."""
    blocks: list[int]
    sampling: Sampling
    num_prompt: int
    """How many of `tokens` are the prompt; penalties count the others."""


class BlockAppend(msgspec.Struct, frozen=True, array_like=True):
    """Extends a slot's block table."""

    slot: int
    blocks: list[int]


class Row(msgspec.Struct, frozen=True, array_like=True):
    """A slot's part of a step: compute its next `num_tokens` known tokens.

    With `emit`, these reach the end of what is known, and one more token is drawn.
    """

    slot: int
    num_tokens: int
    emit: bool


class StepPlan(msgspec.Struct, frozen=True, array_like=True):
    """One step. Applied in the order released, starts, appends, rows."""

    step: int
    released: list[int]
    starts: list[SlotStart]
    appends: list[BlockAppend]
    rows: list[Row]


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities at one generated position: the drawn token's, then the most likely ones'."""

    drawn: float
    top_tokens: list[int]
    top_logprobs: list[float]


class RowResult(msgspec.Struct, frozen=True, array_like=True):
    """What became of a row, in the plan's order."""

    slot: int
    epoch: int
    token: int | None
    """The drawn token; None where the row did not emit or failed."""
    logprobs: TokenLogprobs | None
    fault: str | None
    """Why this row failed (non-finite logits); its neighbours are unharmed."""


class StepResult(msgspec.Struct, frozen=True, array_like=True):
    """The outcome of the oldest step in flight."""

    step: int
    rows: list[RowResult]
    seconds: float
    """Time the device took for the step."""


class Limits(msgspec.Struct, frozen=True, array_like=True):
    """What an executor can hold."""

    num_blocks: int
    block_size: int
    num_slots: int
    depth: int
    """Steps that may be in flight at once: 1 on a CPU, 2 on a GPU."""
    max_model_length: int
    vocabulary_size: int
