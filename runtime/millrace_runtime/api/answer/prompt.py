"""The prompt in an answer: its echoed text, and its tokens' log-probabilities as the engine scores them."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from millrace_runtime.chat.tokenizer import Tokenizer
from millrace_runtime.protocol.encoding import TOKEN_BYTES, count_tokens, unpack_floats, unpack_tokens
from millrace_runtime.protocol.messages import SequenceOutput
from millrace_runtime.protocol.step import PromptLogprobs, TokenLogprobs

PIECE_TOKENS = 128
"""The most scored tokens in one piece. With 20 likely tokens each, their JSON takes some 5 ms. A step may
score 4,096 tokens."""


class ScoredToken(NamedTuple):
    """A token of a prompt, with its rank and its log-probabilities."""

    token: int
    rank: int
    logprobs: TokenLogprobs


class Position(NamedTuple):
    """A token of a choice's text and its log-probabilities."""

    token: int
    text_offset: int
    """Characters of the choice's text that were certain before this token."""
    logprobs: TokenLogprobs | None
    """None for the first token of an echoed prompt: nothing comes before it."""
    drops_space: bool = False
    """Whether a token's leading space is no text there, as that of SentencePiece's first one."""


class PromptDelta(NamedTuple):
    """The new part of a prompt's echo and scores."""

    text: str
    positions: list[Position]
    """The echo's, if the client asked for log-probabilities."""
    scores: Sequence[ScoredToken]
    """The tokens after the first one, if the client asked for `prompt_logprobs`."""


class Echo:
    """An echoed prompt, token by token."""

    def __init__(self, prompt: Sequence[int], text: str | None, tokenizer: Tokenizer) -> None:
        """`text` is the prompt as the client wrote it; None: the client sent tokens."""
        self._prompt = prompt
        self._text = text
        self._tokenizer = tokenizer
        self._detokenizer = tokenizer.open_detokenizer((), tokenizer.special_texts)
        self._num_tokens = 0
        self.num_characters = 0
        """Characters that were returned."""

    def feed(self, scored: Sequence[ScoredToken], num_logprobs: int) -> tuple[str, list[Position]]:
        """Return the text and the positions of the next tokens; the first one of all has no score."""
        found: list[tuple[int, TokenLogprobs | None]] = [
            (token, TokenLogprobs(of.drawn, of.top_tokens[:num_logprobs], of.top_logprobs[:num_logprobs]))
            for token, _, of in scored
        ]
        if self._num_tokens == 0:
            found.insert(0, (self._prompt[0], None))
        positions, pieces = [], []
        for token, logprobs in found:
            begin, drops_space = self.num_characters, self._detokenizer.drops_space
            text = self._spell(token)
            drops_space = drops_space or self._tokenizer.token_bytes(token) == b" " + text.encode(
                errors="surrogatepass"
            )
            positions.append(Position(token, begin, logprobs, drops_space))
            pieces.append(text)
        self._num_tokens += len(positions)
        return "".join(pieces), positions

    def finish(self) -> str:
        """Return the rest of the text."""
        begin = self.num_characters
        if self._text is not None:
            rest = self._text[begin:]
        elif self._num_tokens:
            rest = self._detokenizer.finish()
        else:
            rest = self._tokenizer.decode(self._prompt, hides_special=False)
        self.num_characters += len(rest)
        return rest

    def _spell(self, token: int) -> str:
        """Return a token's text, and count its characters."""
        begin, text = self.num_characters, self._detokenizer.feed([token])
        self.num_characters += len(text) if self._text is None else self._measure(token, text, self._text)
        return text if self._text is None else self._text[begin : self.num_characters]

    def _measure(self, token: int, text: str, written: str) -> int:
        """Return how many of the written characters a token stands for.

        Tokenizers add special tokens and spaces that the client did not write, and change letters.
        """
        for spelled in (text, text.lstrip(" ")):
            if written.startswith(spelled, self.num_characters):
                return len(spelled)
        rest = len(written) - self.num_characters
        return 0 if self._tokenizer.is_special(token) else min(len(text), rest)


class PromptReader:
    """Turns the engine's scores of one sequence's prompt into the echo and the scores of its choice."""

    def __init__(
        self,
        prompt: Sequence[int],
        echo: Echo | None,
        *,
        num_logprobs: int | None,
        wants_scores: bool,
    ) -> None:
        """`num_logprobs` are those beside each token of the echo; None: the echo has text alone."""
        self._prompt = prompt
        self._echo = echo
        self._num_logprobs = num_logprobs
        self._wants_scores = wants_scores
        self._is_read = False

    @property
    def num_characters(self) -> int:
        """Characters of the echo so far."""
        return 0 if self._echo is None else self._echo.num_characters

    def accept(self, output: SequenceOutput) -> PromptDelta | None:
        """Return what an output adds about the prompt. It comes before the first token, or beside it."""
        if self._is_read:
            return None
        self._is_read = bool(output.tokens) or output.finish_reason is not None
        scored = unpack_scores(output.prompt_logprobs, self._prompt)
        text, positions = "", list[Position]()
        if self._echo is not None:
            if self._num_logprobs is not None:
                text, positions = self._echo.feed(scored, self._num_logprobs)
            if self._is_read:
                text += self._echo.finish()
        scores = scored if self._wants_scores else ()
        return PromptDelta(text, positions, scores) if text or positions or scores else None


def split_scores(output: SequenceOutput) -> list[SequenceOutput]:
    """Return outputs that together say the same, each with few scores. The last one has the tokens."""
    scores = output.prompt_logprobs
    if scores is None or (count := count_tokens(scores.ranks)) <= PIECE_TOKENS:
        return [output]
    width, begins = len(scores.top_tokens) // count, range(0, count, PIECE_TOKENS)
    pieces = [
        PromptLogprobs(
            scores.first + begin,
            *(
                part[begin * TOKEN_BYTES :][: PIECE_TOKENS * TOKEN_BYTES]
                for part in (scores.ranks, scores.logprobs)
            ),
            *(
                part[begin * width :][: PIECE_TOKENS * width]
                for part in (scores.top_tokens, scores.top_logprobs)
            ),
        )
        for begin in begins
    ]
    number = output.sequence_id
    before = [SequenceOutput(number, [], [], None, None, prompt_logprobs=piece) for piece in pieces[:-1]]
    return [*before, msgspec.structs.replace(output, prompt_logprobs=pieces[-1])]


def unpack_scores(scores: PromptLogprobs | None, prompt: Sequence[int]) -> list[ScoredToken]:
    """Return the tokens that an output scores."""
    if scores is None:
        return []
    ranks, logprobs = unpack_tokens(scores.ranks), unpack_floats(scores.logprobs)
    top, values = unpack_tokens(scores.top_tokens).tolist(), unpack_floats(scores.top_logprobs).tolist()
    number = len(top) // len(ranks)
    return [
        ScoredToken(
            prompt[scores.first + at],
            rank,
            TokenLogprobs(
                logprob, top[at * number : (at + 1) * number], values[at * number : (at + 1) * number]
            ),
        )
        for at, (rank, logprob) in enumerate(zip(ranks, logprobs, strict=True))
    ]
