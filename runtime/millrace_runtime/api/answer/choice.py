"""One sequence's text as its tokens arrive: detokenised, cut at stop strings, timed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from millrace_runtime.api.answer.prompt import Position, PromptReader, ScoredToken
from millrace_runtime.chat.detokenizer import NONE_SHOWN
from millrace_runtime.chat.stop import StopMatcher, StopStrings
from millrace_runtime.chat.tokenizer import Tokenizer
from millrace_runtime.protocol.messages import FINISH_STOP, SequenceOutput

_CONTEXT_TOKENS = 64
"""Of the prompt's end, as context for the answer's first token."""


@dataclass(slots=True)
class Delta:
    """The new part of a choice: certain text, log-probabilities, and at the end the finish reason."""

    index: int
    text: str
    positions: list[Position]
    """The new tokens, if the client asked for log-probabilities. Their text may still be held back."""
    finish_reason: str | None
    num_tokens: int = 0
    """Tokens of the choice so far."""
    mean_logprob: float = 0.0
    """Of these tokens, if the engine says how likely each was."""
    stop_string: str | None = None
    """The stop string that ended the choice."""
    stop_token: int | None = None
    """The client's stop token that ended the choice."""
    scores: Sequence[ScoredToken] = ()
    """The new tokens of the prompt after its first, if the client asked for `prompt_logprobs`."""
    token_ids: list[int] = field(default_factory=list)
    """The new tokens, if the client asked for them, with one that ends the sequence."""

    @property
    def stop_reason(self) -> str | int | None:
        """The client's stop string or stop token that ended the choice; None if neither did."""
        return self.stop_token if self.stop_string is None else self.stop_string


class Choice:
    """Turns one sequence's outputs into deltas."""

    def __init__(
        self,
        index: int,
        prompt: Sequence[int],
        tokenizer: Tokenizer,
        stops: StopStrings,
        ends: frozenset[int],
        *,
        hides_special: bool = True,
        min_tokens: int = 0,
        markers: Mapping[int, str] = NONE_SHOWN,
        reader: PromptReader | None = None,
        returns_token_ids: bool = False,
        client_ends: frozenset[int] = frozenset(),
    ) -> None:
        """`ends` are the tokens that are no text where they end the sequence.

        `client_ends` are those that only the client has named, whether they are text or not.
        `markers` are the special tokens that a parser of the answer looks for, with their texts.
        `reader` is for an answer that has its prompt's echo or scores.
        """
        self.index = index
        self.num_prompt_tokens = len(prompt)
        self.num_cached_tokens = 0
        """Tokens of the prompt that are not computed, because the prefix cache has them."""
        self.num_tokens = 0
        """Generated tokens, with the stop token at the end."""
        self.finish_reason: str | None = None
        self.first_token_at: float | None = None
        self.num_first_tokens = 0
        """Tokens that came with the first one, and that one: forced tokens take no time."""
        self.last_token_at = 0.0
        shown = {**markers, **stops.marks} if hides_special else tokenizer.special_texts
        self._detokenizer = tokenizer.open_detokenizer(prompt[-_CONTEXT_TOKENS:], shown)
        self._stop = StopMatcher(stops)
        self._min_tokens = min_tokens
        """So many tokens come before a stop string is looked for."""
        self._unmark = {ord(mark): None for mark in stops.marks.values()}
        """Takes the marks of special tokens out of a text."""
        self._end_ids = ends
        self._client_end_ids = client_ends
        self._logprob = 0.0
        """The sum of its tokens' log-probabilities."""
        self._returns_token_ids = returns_token_ids
        self._num_characters = 0
        """Characters so far, counted only if the client asked for log-probabilities."""
        self._reader = reader

    def read_prompt(self, output: SequenceOutput) -> Delta | None:
        """Return the new part of the prompt's echo and scores. `accept` reads the rest of the output."""
        if self._reader is None or (read := self._reader.accept(output)) is None:
            return None
        self._num_characters = self._reader.num_characters
        return Delta(self.index, read.text, read.positions, None, scores=read.scores)

    def accept(self, output: SequenceOutput) -> Delta | None:
        """Return the new part of the choice; None while no new text is certain."""
        finish, num_before = output.finish_reason, self.num_tokens
        positions: list[Position] = []
        text = "".join(self._read_tokens(output, positions))
        if finish is not None:
            text += self._stop.feed(self._detokenizer.finish())
        if self._stop.is_matched:
            finish = FINISH_STOP
        elif finish is not None:
            text += self._stop.finish()
        if self._unmark:
            text = text.translate(self._unmark)
        token_ids = output.tokens[: self.num_tokens - num_before] if self._returns_token_ids else []
        if not text and not positions and not token_ids and finish is None:
            return None
        self.finish_reason = finish
        return Delta(
            self.index,
            text,
            positions,
            finish,
            num_tokens=self.num_tokens,
            mean_logprob=self._logprob / max(1, self.num_tokens),
            stop_string=self._stop.matched,
            stop_token=self._find_stop_token(output),
            token_ids=token_ids,
        )

    def _find_stop_token(self, output: SequenceOutput) -> int | None:
        if output.finish_reason != FINISH_STOP or not output.tokens:
            return None
        return output.tokens[-1] if output.tokens[-1] in self._client_end_ids else None

    def _read_tokens(self, output: SequenceOutput, positions: list[Position]) -> Iterator[str]:
        """Count the tokens, and yield each one's certain text. Its position goes to `positions`.

        An accepted draft brings several at once. Tokens behind a stop string do not belong to the choice.
        """
        num_text = len(output.tokens)
        if output.finish_reason == FINISH_STOP and output.tokens and output.tokens[-1] in self._end_ids:
            num_text -= 1  # the token that ends the sequence is no text
        for place, token in enumerate(output.tokens):
            self.num_tokens += 1
            if output.logprobs:
                self._logprob += output.logprobs[place].drawn
            if place == num_text:
                return
            drops_space = bool(output.logprobs) and self._detokenizer.drops_space
            text = self._detokenizer.feed((token,))
            if output.logprobs:
                positions.append(Position(token, self._num_characters, output.logprobs[place], drops_space))
                self._num_characters += len(text.translate(self._unmark))
            yield self._stop.feed(text) if self.num_tokens > self._min_tokens else text
            if self._stop.is_matched:
                return
