"""What the engine and its workers tell each other, over a socket pair for each worker.

engine                     worker
   |  <--------- Said, Loaded |   the weights are there
   |  Measure --------------> |   once all have loaded, as on CPUs they share the host's memory
   |  <------------------ Room |   what fits where this worker is
   |  Allocate -------------> |   what fits everywhere
   |  <--------------- Holding |
   |  Submit, Masks --------> |   to all
   |  <------------------ Done |   from the first
   |  Record ---------------> |   to all
   |  <-------------- Recorded |   from all
   |  Forget ---------------> |   to all, where one had no memory for it: all must compute the same
   |  <---------------- Failed |   from any, at any time, and then it ends
"""

import msgspec

from millrace_runtime.protocol.executor import Forget, Record, Sleep, Wake
from millrace_runtime.protocol.placement import Placement
from millrace_runtime.protocol.step import Limits, StepPlan, StepResult


class Measure(msgspec.Struct, frozen=True, tag="measure"):
    """Say how large a KV cache fits."""

    host_bytes: int
    """This worker's share of the host's memory."""
    host_source: str
    """What bounds it, in words for the log."""


class Allocate(msgspec.Struct, frozen=True, tag="allocate"):
    """Allocate the KV cache."""

    num_blocks: int
    max_model_length: int


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    """Run a step."""

    plan: StepPlan


class Masks(msgspec.Struct, frozen=True, tag="masks"):
    """The masks of a submitted step."""

    step: int
    masks: bytes


ToWorker = Measure | Allocate | Submit | Masks | Sleep | Wake | Record | Forget


class Said(msgspec.Struct, frozen=True, tag="said"):
    """A line for the log."""

    line: str


class Loaded(msgspec.Struct, frozen=True, tag="loaded"):
    """The weights are loaded."""


class Room(msgspec.Struct, frozen=True, tag="room"):
    """The KV cache that fits, in the units of every worker: a block has this worker's heads of its tokens."""

    num_blocks: int
    max_model_length: int
    line: str
    """It in words for the log."""


class Holding(msgspec.Struct, frozen=True, tag="holding"):
    """The KV cache is allocated, and steps may come."""

    limits: Limits
    placement: Placement


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The oldest step's result."""

    result: StepResult


class Recorded(msgspec.Struct, frozen=True, tag="recorded"):
    """The worker has done what it could to record."""

    is_there: bool


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The worker ends."""

    reason: str
    is_model: bool
    """Whether the model or its settings are to blame, and not the worker."""


FromWorker = Said | Loaded | Room | Holding | Done | Recorded | Failed
