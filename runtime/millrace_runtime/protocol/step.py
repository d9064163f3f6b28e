"""The engine's plan for one step, the executor's result of it, and the executor's limits.

The scheduler decides which blocks and how many tokens. The executor owns the device's contents: block
tables, token ids, lengths, penalty counts. A *slot* is a sequence's place on the device. Its *epoch*
distinguishes one tenant of the slot from the next, so that the late result of a previous tenant is dropped.

Layers with the same window form a *KV group*, with its own blocks and table. In a group with a window, blocks
that no later token sees go to other sequences: the front of such a table is stale and never read.

A *draft* is a guess at the next tokens. A row that draws may verify one: the executor computes the known
tokens and the draft after them, keeps the draft's tokens up to the first one that it would not have drawn,
and draws one more. The guesses are the executor's own: each result offers some for the sequence's next row
(`next_draft`), and the scheduler chooses how many of them the row has.

*Forced* tokens need no draw: a grammar leaves one text there. The scheduler appends them to the sequence, and
its next row brings them to the executor.
"""

import msgspec

from millrace_runtime.protocol.sampling import Sampling


class SlotStart(msgspec.Struct, frozen=True, array_like=True):
    """Places a sequence in a slot. It takes effect before the step's rows run."""

    slot: int
    epoch: int
    tokens: bytes
    """Every known token (`protocol/encoding.py`): the prompt, and after a preemption the generated tokens."""
    num_computed: int
    """Tokens whose KV is already in `blocks` (a prefix hit); 0 without one."""
    blocks: list[list[int]]
    """By KV group, from position 0 on. The step's appends may add more at once."""
    sampling: Sampling
    num_prompt: int
    """How many of `tokens` are the prompt. Penalties count the others."""
    num_scored: int = 0
    """How many of the prompt's tokens after the first got their log-probabilities before a preemption."""


class BlockAppend(msgspec.Struct, frozen=True, array_like=True):
    """Extends a slot's block table of one KV group."""

    slot: int
    group: int
    blocks: list[int]


class Row(msgspec.Struct, frozen=True, array_like=True):
    """A slot's part of a step: it computes the slot's next `num_tokens` known tokens.

    With `emit`, these are the last known ones, and the row draws one more.
    """

    slot: int
    num_tokens: int
    emit: bool
    draft: tuple[int, ...] = ()
    """The draft to verify. The tables have room for it after the known tokens."""
    is_masked: bool = False
    """Whether its draws have masks, from `provide_masks`: one, and one behind each token of the draft. Such a
    row emits."""
    forced: tuple[int, ...] = ()
    """Tokens that follow the slot's known ones, and are known from now on. Penalties count them as drawn."""


class StepPlan(msgspec.Struct, frozen=True, array_like=True):
    """One step. The executor applies released, starts, appends and rows in this order."""

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


class PromptLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities of consecutive tokens of a prompt, each list packed (`protocol/encoding.py`).

    A prompt of 4,096 tokens with 20 likely ones each has 90,000 numbers, too many for Python's objects.
    """

    first: int
    """The position of the first of these tokens."""
    ranks: bytes
    """By token: 1 if no token of the vocabulary is more likely."""
    logprobs: bytes
    """By token, as floats."""
    top_tokens: bytes
    """The most likely tokens at each position, side by side: as many for each."""
    top_logprobs: bytes
    """The log-probabilities of these tokens, as floats."""


FAULT_NOTHING_ALLOWED = "the sequence's masks and bias leave no token"
"""The fault of a row whose request allows no token: the client has caused it."""


class RowResult(msgspec.Struct, frozen=True, array_like=True):
    """A row's result. Results have the order of the plan's rows."""

    slot: int
    epoch: int
    tokens: list[int]
    """The accepted tokens of a draft and then the drawn one; empty if the row does not emit. A failed row has
    the tokens that it drew before the fault."""
    num_computed: int
    """The sequence's tokens whose KV is written, without the drawn token and rejected drafts."""
    next_draft: tuple[int, ...] = ()
    """Guesses at the tokens after these. The sequence's next row may verify the first ones of them."""
    logprobs: list[TokenLogprobs] = []
    """One for each token if the sequence wants them, else empty."""
    fault: str | None = None
    """Why this row failed (non-finite logits, or FAULT_NOTHING_ALLOWED). Other rows are unaffected.

    It is no fault if no token may follow a guess: the row ends with the draw that equals the guess, and the
    sequence's next row draws there again."""
    prompt_logprobs: PromptLogprobs | None = None
    """Of the prompt's tokens that follow the row's: those of its sequence that have none yet, if it wants
    them."""


class StepResult(msgspec.Struct, frozen=True, array_like=True):
    """The outcome of the oldest step in flight."""

    step: int
    rows: list[RowResult]
    seconds: float
    """The device's own time for the step, without the waits for its turn and for masks."""
    num_compiled: int = 0
    """Kernels that were compiled since the step before was collected. `seconds` includes this time."""


class KvGroup(msgspec.Struct, frozen=True, array_like=True):
    """Layers that share block tables."""

    num_blocks: int
    window: int | None = None
    """A token sees itself and the `window` - 1 before it; None: all before it."""


class StepSize(msgspec.Struct, frozen=True, array_like=True, order=True):
    """The largest step that a recording serves, and the kind of its steps."""

    num_tokens: int
    is_mixed: bool = False
    """Whether a row may have several tokens. If not, each row has one: all of them decode."""


class Limits(msgspec.Struct, frozen=True, array_like=True):
    """An executor's limits."""

    groups: tuple[KvGroup, ...]
    block_size: int
    num_slots: int
    depth: int
    """Steps that may be in flight at once: 1 on a CPU, 2 on a GPU."""
    max_model_length: int
    vocabulary_size: int
    max_batched_tokens: int
    """The most tokens of one step, with drafts; at least 1."""
    max_draft: int = 0
    """The most draft tokens that one row may verify; 0: the executor supports no drafts."""
    max_draws: int = 0
    """The most draws of a step with drafts: there is memory for the logits of so many."""
    recordable: tuple[StepSize, ...] = ()
    """The sizes of steps that `Record` makes faster, ascending."""
    kv_format: str = "Model"
    """Of the KV cache: "Model", "Fp8" or "Int8"."""

    @property
    def kv_tokens(self) -> int:
        """Tokens that the KV cache holds: of all sequences together, in the group that is full first."""
        full = [group.num_blocks for group in self.groups if group.window is None]
        return min(full or [group.num_blocks for group in self.groups]) * self.block_size

    @property
    def longest_window(self) -> int | None:
        """The most tokens that a token sees; None: all before it."""
        windows = [group.window for group in self.groups]
        return None if None in windows else max(filter(None, windows))


class Placement(msgspec.Struct, frozen=True, array_like=True):
    """The device and the number types of a replica's loaded model. The settings may ask for others."""

    device: str
    """"cpu" or "cuda"."""
    device_name: str
    """A GPU's own name. On CPUs the kernels: "torch", or the instruction set of the native ones."""
    dtype: str
    """Of the activations, and of the KV cache and the weights unless they are rounded: "bfloat16"."""
    weights: str
    """"FromCheckpoint", "Int8" or "Int4"."""
    tensor_parallel: int
    """Workers that share the model."""
    kv_cache: str = "Model"
    """"Model": keys and values have `dtype`. Or "Fp8" or "Int8"."""
