"""An engine at the socket seam: it says a fixed text, usually one token of each sequence a step."""

import asyncio
import socket
from dataclasses import dataclass, field

from millrace_runtime.protocol.encoding import (
    FrameDecoder,
    count_tokens,
    encode_frame,
    pack_floats,
    pack_tokens,
    unpack_tokens,
)
from millrace_runtime.protocol.messages import (
    Abort,
    Begun,
    EngineReady,
    Generate,
    NewSequence,
    SequenceOutput,
    Stats,
    StepOutputs,
    StepTiming,
    ToEngine,
)
from millrace_runtime.protocol.step import Placement, PromptLogprobs, TokenLogprobs

READY = EngineReady(
    max_model_length=200,
    num_blocks=16,
    kv_tokens=256,
    block_size=16,
    max_sequences=8,
    vocabulary_size=270,
    placement=Placement("cpu", "avx2", "float32", "FromCheckpoint", 1),
    startup_seconds={"weights": 0.5},
)


@dataclass
class FakeEngine:
    sock: socket.socket
    reply: list[int]
    """Tokens of every sequence; a stop token of the request ends it earlier."""
    running: dict[int, tuple[Generate, NewSequence, int]] = field(default_factory=dict)
    seen: list[Generate] = field(default_factory=list)
    aborted: list[int] = field(default_factory=list)
    pauses_after: int | None = None
    """Steps after which no more are made, until set again."""
    fails_sequences: bool = False
    fault: str = "the logits are not finite"
    """Why it fails sequences."""
    cached: list[int] = field(default_factory=list)
    """Cached tokens of the prompt, of each sequence that begins next; afterwards 0."""
    burst: int = 1
    """Tokens of a sequence's later steps, as if a draft had been accepted."""
    first_burst: int = 1
    """Of the first step, as if a grammar had forced the others."""
    num_steps: int = 0
    is_loading: bool = False
    """While True it does not say that it is ready."""

    is_frozen: bool = False
    """While True it neither hears nor says anything."""

    async def run(self) -> None:
        self.reader, self.writer = await asyncio.open_connection(sock=self.sock)
        while self.is_loading:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        self.send(READY)
        listening = asyncio.create_task(self.listen())
        try:
            while not listening.done():
                self.step()
                await asyncio.sleep(0.001)
        finally:
            listening.cancel()
            self.writer.close()

    async def listen(self) -> None:
        decoder: FrameDecoder[ToEngine] = FrameDecoder(ToEngine)  # type: ignore[arg-type]
        while data := await self.reader.read(65536):
            while self.is_frozen:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            for message in decoder.feed(data):
                self.handle(message)

    def handle(self, message: ToEngine) -> None:
        match message:
            case Generate():
                self.seen.append(message)
                if count_tokens(message.prompt) + message.max_tokens > READY.max_model_length:
                    self.refuse(message)
                    return
                self.running |= {new.sequence_id: (message, new, 0) for new in message.sequences}
            case Abort(sequence_id):
                self.aborted.append(sequence_id)
                self.running.pop(sequence_id, None)
                self.send(StepOutputs([], self.stats(), None))

    def refuse(self, message: Generate) -> None:
        outputs = [SequenceOutput(new.sequence_id, [], [], "error", "too long") for new in message.sequences]
        self.send(StepOutputs(outputs, self.stats(), None))

    def step(self) -> None:
        if (
            self.is_frozen
            or not self.running
            or (self.pauses_after is not None and self.num_steps >= self.pauses_after)
        ):
            return
        self.num_steps += 1
        begun = [
            Begun(number, self.cached.pop(0) if self.cached else 0)
            for number, (_, _, place) in self.running.items()
            if place == 0
        ]
        outputs = [self.advance(*state) for state in list(self.running.values())]
        timing = StepTiming(0.002, len(outputs), len(outputs), 10, self.num_steps > 1)
        self.send(StepOutputs(outputs, self.stats(), timing, begun))

    def advance(self, request: Generate, new: NewSequence, place: int) -> SequenceOutput:
        scores = None if place else score(request, new)
        if request.max_tokens == 0:
            del self.running[new.sequence_id]
            return SequenceOutput(new.sequence_id, [], [], "length", None, scores)
        tokens, finish = self.say(request, place)
        if self.fails_sequences:
            finish = "error"
        self.running[new.sequence_id] = (request, new, place + len(tokens))
        if finish:
            del self.running[new.sequence_id]
        logprobs = self.rate(tokens, new.sampling.num_logprobs)
        error = self.fault if self.fails_sequences else None
        return SequenceOutput(new.sequence_id, [] if error else tokens, logprobs, finish, error, scores)

    def say(self, request: Generate, place: int) -> tuple[list[int], str | None]:
        """The tokens of one step, and why the sequence ends with them."""
        tokens: list[int] = []
        for at in range(place, place + (self.burst if place else self.first_burst)):
            tokens.append(self.reply[at % len(self.reply)])
            if tokens[-1] in request.stop_token_ids:
                return tokens, "stop"
            if at + 1 >= request.max_tokens:
                return tokens, "length"
        return tokens, None

    @staticmethod
    def rate(tokens: list[int], wanted: int | None) -> list[TokenLogprobs]:
        if wanted is None:
            return []
        numbers = [-0.5 - rank for rank in range(wanted)]
        return [TokenLogprobs(-0.5, [token, *range(1, 20)][:wanted], numbers) for token in tokens]

    def stats(self) -> Stats:
        num_waiting = sum(place == 0 for _, _, place in self.running.values())
        return Stats(num_waiting, len(self.running) - num_waiting, 16, 12 if self.running else 16, 0)

    def send(self, message: object) -> None:
        self.writer.write(encode_frame(message))


def score(request: Generate, new: NewSequence) -> PromptLogprobs | None:
    """Each token's log-probability is minus its position; it is the second likely one, after tokens 1, 2 …"""
    number, tokens = new.sampling.num_prompt_logprobs, unpack_tokens(request.prompt)[1:]
    if number is None or not tokens:
        return None
    tops = [[1, token, *range(2, 20)][:number] for token in tokens]
    values = [
        [-place - 0.5, -place - 1.0, *(-place - 2.0 for _ in range(18))][:number]
        for place in range(len(tokens))
    ]
    return PromptLogprobs(
        first=1,
        ranks=pack_tokens(2 for _ in tokens),
        logprobs=pack_floats(-place - 1.0 for place in range(len(tokens))),
        top_tokens=pack_tokens(token for top in tops for token in top),
        top_logprobs=pack_floats(value for some in values for value in some),
    )
