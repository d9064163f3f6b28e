"""A simulated replica: continuous batching with a prefix cache of real blocks, which evicts the least recent.

The simulator of the autoscaler draws how much of a prompt is found. Here that is the question, so each block
of each prompt has a key. Steps take the time that its `Hardware` says.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.routing.workload import BLOCK_TOKENS, Prompt
from millrace_operator.autoscaler.simulate.agenda import Agenda
from millrace_operator.autoscaler.simulate.hardware import Hardware

HARDWARE = Hardware(max_sequences=64, max_batched_tokens=2048, kv_tokens=48_000)
"""About a model of 8 billion weights in bf16 on a GPU of 24 GB; the rest of the memory has keys and values.
Its times are those of the simulated autoscaler's replicas."""
Block = tuple[int, int]


class BlockCache:
    """Owner of a replica's blocks: held by sequences, or idle with their contents, or free."""

    def __init__(self, num_blocks: int) -> None:
        self._num_blocks = num_blocks
        self._held: dict[Block, int] = {}
        """The number of sequences that hold a block."""
        self._idle: OrderedDict[Block, None] = OrderedDict()
        """Blocks that nobody holds, the least recently used first."""

    @property
    def usage(self) -> float:
        """The share of blocks that sequences hold."""
        return len(self._held) / self._num_blocks

    def count_found(self, blocks: Sequence[Block]) -> int:
        """Return how many of the leading blocks are there."""
        for number, block in enumerate(blocks):
            if block not in self._held and block not in self._idle:
                return number
        return len(blocks)

    def hold(self, blocks: Sequence[Block]) -> bool:
        """Hold the blocks, and evict idle ones for the new ones. Return False, holding none, without room."""
        new = sum(1 for block in blocks if block not in self._held)
        if len(self._held) + new > self._num_blocks:
            return False
        for block in blocks:
            self._idle.pop(block, None)
            self._held[block] = self._held.get(block, 0) + 1
        while len(self._held) + len(self._idle) > self._num_blocks:
            self._idle.popitem(last=False)
        return True

    def release(self, blocks: Sequence[Block]) -> None:
        """Release the blocks. The last ones are evicted first: others may share the leading ones."""
        for block in reversed(blocks):
            self._held[block] -= 1
            if not self._held[block]:
                del self._held[block]
                self._idle[block] = None


@dataclass(eq=False)
class Job:
    """A prompt at a replica."""

    prompt: Prompt
    arrived_at: float
    on_end: Callable[["Job"], None]
    blocks: list[Block]
    num_uncomputed: int = 0
    num_written: int = 0
    num_found: int = 0
    """Tokens that the prefix cache had."""
    first_token_at: float | None = None
    ended_at: float = 0.0


class SimulatedReplica:
    """One replica in virtual time."""

    def __init__(self, agenda: Agenda, hardware: Hardware = HARDWARE) -> None:
        self._agenda = agenda
        self._hardware = hardware
        self.cache = BlockCache(hardware.kv_tokens // BLOCK_TOKENS)
        self.waiting: deque[Job] = deque()
        self.running: list[Job] = []
        self._is_stepping = False
        self._context = 0
        self.load_seconds = 0.0
        """The integral of the requests in flight over time."""
        self._counted_at = 0.0

    @property
    def num_in_flight(self) -> int:
        """Requests waiting or running."""
        return len(self.waiting) + len(self.running)

    def submit(self, prompt: Prompt, on_end: Callable[[Job], None]) -> None:
        """Take a request. `on_end` gets it after its last token."""
        self.count_load()
        blocks = prompt.list_blocks(prompt.num_tokens + prompt.answer_tokens)
        self.waiting.append(Job(prompt, self._agenda.now, on_end, blocks))
        if not self._is_stepping:
            self._step()

    def count_load(self) -> None:
        """Add the time since the last change to `load_seconds`."""
        self.load_seconds += self.num_in_flight * (self._agenda.now - self._counted_at)
        self._counted_at = self._agenda.now

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self._hardware.max_sequences:
            job = self.waiting[0]
            num_prompt = job.prompt.num_tokens
            leading = job.blocks[: (num_prompt - 1) // BLOCK_TOKENS]  # the last token is always computed
            found = self.cache.count_found(leading)
            if not self.cache.hold(job.blocks):
                return
            job.num_found = found * BLOCK_TOKENS
            job.num_uncomputed = num_prompt - job.num_found
            self._context += job.num_found
            self.running.append(self.waiting.popleft())

    def _step(self) -> None:
        self._admit()
        self._is_stepping = bool(self.running)
        if not self.running:
            return
        budget = self._hardware.max_batched_tokens
        chunks: list[tuple[Job, int]] = []
        for job in self.running:
            size = min(budget, job.num_uncomputed) if job.num_uncomputed else 1
            if size:
                chunks.append((job, size))
                budget -= size
        num_tokens = self._hardware.max_batched_tokens - budget
        seconds = self._hardware.step_seconds(num_tokens, self._context)
        self._agenda.add(self._agenda.now + seconds, lambda: self._end_step(chunks))

    def _end_step(self, chunks: list[tuple[Job, int]]) -> None:
        self.count_load()
        ended = []
        for job, size in chunks:
            self._context += size
            job.num_uncomputed -= min(size, job.num_uncomputed)
            if job.num_uncomputed:
                continue
            job.num_written += 1
            if job.first_token_at is None:
                job.first_token_at = self._agenda.now
            if job.num_written == job.prompt.answer_tokens:
                ended.append(job)
        for job in ended:
            job.ended_at = self._agenda.now
            self.running.remove(job)
            self.cache.release(job.blocks)
            self._context -= job.prompt.num_tokens + job.prompt.answer_tokens
        for job in ended:
            job.on_end(job)
        self._step()
