"""The messages between the HTTP process and the engine process, over their Unix socket.

Each message is one msgspec MessagePack frame (a 4-byte big-endian length, then the body).
"""

import msgspec

from millrace_runtime.protocol.sampling import Sampling
from millrace_runtime.protocol.step import Placement, PromptLogprobs, TokenLogprobs

FINISH_STOP = "stop"
FINISH_LENGTH = "length"
FINISH_ABORT = "abort"
FINISH_ERROR = "error"


class NewSequence(msgspec.Struct, frozen=True, array_like=True):
    """One of a prompt's sequences: a choice of the request."""

    sequence_id: int
    sampling: Sampling


class Grammar(msgspec.Struct, frozen=True, array_like=True):
    """The grammar of a text, as llguidance reads it, and the measurements of its proof."""

    text: str
    num_bytes: int = 0
    """Of memory, once it is compiled."""
    seconds: float = 0.0
    """Of CPU time to compile it."""
    is_optimistic: bool = False
    """Whether draws have no mask, because most fit. The engine repeats a draw that does not, with a mask."""
    is_optional: bool = False
    """Whether the engine goes on without the grammar if it fails."""
    is_of_client: bool = False
    """Whether a client wrote its rules, which may be ambiguous."""
    is_provisional: bool = False
    """Whether a tool lost its schema because a mask took too long: another proof may keep it."""


class Generate(msgspec.Struct, frozen=True, array_like=True, tag="generate", kw_only=True):
    """Begin the sequences of one prompt. A request with n choices sends one with n sequences."""

    sequences: list[NewSequence]
    prompt: bytes
    """Token ids (`protocol/encoding.py`)."""
    max_tokens: int
    """Of each sequence. With 0 the prompt is computed, and nothing is drawn."""
    stop_token_ids: list[int]
    """Each ends its sequence: the model's end tokens, unless the client ignores them, and the client's."""
    grammar: Grammar | None = None
    """The form of each text. With it each draw has a mask, unless the grammar is optimistic."""
    bad_words: list[list[int]] = []
    """Tokens that may not come one after the other, two at least. Each draw has a mask then, too."""
    salt: bytes = b""
    """Only sequences with the same salt share computed prefixes."""
    priority: int = 0
    """A waiting sequence with a smaller one is admitted first; of equal ones the oldest."""


class Abort(msgspec.Struct, frozen=True, array_like=True, tag="abort"):
    """Drop a sequence: its client has left, or its text has reached a stop string."""

    sequence_id: int


class Begun(msgspec.Struct, frozen=True, array_like=True):
    """A sequence whose first step has just begun."""

    sequence_id: int
    num_cached: int
    """Tokens of its prompt that are not computed, because the prefix cache has them."""


class SequenceOutput(msgspec.Struct, frozen=True, array_like=True):
    """The output of one step for a sequence."""

    sequence_id: int
    tokens: list[int]
    logprobs: list[TokenLogprobs]
    """One for each token if the sequence wants them, else empty."""
    finish_reason: str | None
    error: str | None
    """With finish_reason "error": the cause, which the client may read."""
    prompt_logprobs: PromptLogprobs | None = None
    """Of the prompt's next tokens, if the sequence wants them. The last ones come before the first token, or
    beside it."""


class Stats(msgspec.Struct, frozen=True, array_like=True):
    """The engine's state after a step. The gauges show the newest one."""

    num_waiting: int
    num_running: int
    num_blocks: int
    """Of the KV group with the smallest free share, like `num_free_blocks`."""
    num_free_blocks: int
    """With the cached ones: a sequence may take them immediately."""
    num_preemptions: int
    """Since the start."""
    num_compiled: int = 0
    """Kernels that were compiled after the replica was ready."""
    num_prefix_queries: int = 0
    """Tokens of prompts that were looked up in the prefix cache, since the start."""
    num_prefix_hits: int = 0
    """The tokens among them that the cache had."""
    num_drafts: int = 0
    """Drafts that steps verified, and runs of forced tokens, since the start."""
    num_drafted: int = 0
    """Tokens of these drafts."""
    num_accepted: int = 0
    """Tokens of these drafts that became a part of the text."""


class StepTiming(msgspec.Struct, frozen=True, array_like=True):
    """The size and time of one step: an observation for the step-time model."""

    seconds: float
    num_sequences: int
    num_tokens: int
    """Known tokens, and the draft tokens that the step had room for."""
    num_context_tokens: int
    """KV tokens that its rows read."""
    is_decode_only: bool


class StepOutputs(msgspec.Struct, frozen=True, array_like=True, tag="outputs"):
    """One message for each step, with every sequence's new tokens. Without timing, no step has ended."""

    outputs: list[SequenceOutput]
    stats: Stats
    timing: StepTiming | None
    begun: list[Begun] = []
    """The sequences whose first step has just begun."""


class EngineReady(msgspec.Struct, frozen=True, array_like=True, tag="ready"):
    """The engine's first message: it has loaded the weights and tried some steps."""

    max_model_length: int
    num_blocks: int
    """Of the largest KV group."""
    kv_tokens: int
    """Tokens that the KV cache holds, of all sequences together."""
    block_size: int
    max_sequences: int
    """The most sequences that a step computes."""
    vocabulary_size: int
    placement: Placement
    startup_seconds: dict[str, float]
    """By phase: imports, weights, warmup."""
    trial_steps: list[StepTiming] = []
    """The trial steps before the first request; empty if the model is too slow for them."""


ToEngine = Generate | Abort
FromEngine = EngineReady | StepOutputs
