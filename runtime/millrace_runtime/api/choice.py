"""One sequence's text as its tokens arrive: detokenised, cut at stop strings, timed."""

from dataclasses import dataclass, field

from millrace_runtime.chat.stop import StopMatcher
from millrace_runtime.chat.tokenizer import Tokenizer
from millrace_runtime.protocol.messages import FINISH_STOP, SequenceOutput
from millrace_runtime.protocol.step import TokenLogprobs


@dataclass(slots=True)
class Delta:
    """A choice's news: text that is certain, its tokens' log-probabilities, perhaps its end."""

    index: int
    text: str
    logprobs: list[tuple[int, TokenLogprobs]] = field(default_factory=list)
    """(token id, its log-probabilities), where they were asked for."""
    finish_reason: str | None = None


class Choice:
    """Turns one sequence's outputs into deltas."""

    def __init__(
        self,
        index: int,
        num_prompt_tokens: int,
        tokenizer: Tokenizer,
        stops: tuple[str, ...],
        ends: frozenset[int],
    ) -> None:
        self.index = index
        self.num_prompt_tokens = num_prompt_tokens
        self.num_tokens = 0
        """Generated so far, an ending stop token included."""
        self.finish_reason: str | None = None
        self.first_token_at: float | None = None
        self.last_token_at = 0.0
        self._detokenizer = tokenizer.open_detokenizer()
        self._stop = StopMatcher(stops)
        self._end_ids = ends
        self._logprobs: list[tuple[int, TokenLogprobs]] = []

    def accept(self, output: SequenceOutput) -> Delta | None:
        """Return what the output makes certain; None if that is nothing yet."""
        tokens, finish = output.tokens, output.finish_reason
        self.num_tokens += len(tokens)
        if finish == FINISH_STOP and tokens and tokens[-1] in self._end_ids:
            tokens = tokens[:-1]  # the token that ends the sequence is no text
        if output.logprobs:
            self._logprobs += zip(tokens, output.logprobs, strict=False)
        text = self._stop.feed(self._detokenizer.feed(tokens))
        if finish is not None:
            text += self._stop.feed(self._detokenizer.finish())
        if self._stop.is_matched:
            finish = FINISH_STOP
        elif finish is not None:
            text += self._stop.finish()
        if not text and finish is None:
            return None
        self.finish_reason = finish
        return self._delta(text)

    def _delta(self, text: str) -> Delta:
        logprobs, self._logprobs = self._logprobs, []
        return Delta(self.index, text, logprobs, self.finish_reason)
