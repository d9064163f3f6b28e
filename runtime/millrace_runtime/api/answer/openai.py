"""POST /v1/completions, and what it shares with chats: choices side by side, and chunks of one shape."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

import orjson

from millrace_runtime.api.answer.choice import Delta
from millrace_runtime.api.answer.logprobs import (
    NO_LOGPROBS,
    ChatLogprobs,
    CompletionLogprobs,
    Logprobs,
    PromptLogprobsJson,
)
from millrace_runtime.api.answer.writer import AnswerSpec, Writer
from millrace_runtime.api.request.choices import BestOf
from millrace_runtime.api.usage import Usage
from millrace_runtime.protocol.encoding import TOKEN_BYTES

DONE = b"data: [DONE]\n\n"


class WholeChoice:
    """Collects one choice's deltas."""

    def __init__(self, number: int, logprobs: Logprobs) -> None:
        self.number = number
        """Among all choices that are drawn."""
        self.logprobs = logprobs
        self.mean_logprob = 0.0
        self.finish_reason: str | None = None
        self.stop_reason: str | int | None = None
        self.token_ids: list[int] = []
        self._texts: list[str] = []

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._texts)

    def add(self, delta: Delta) -> int:
        """Append the choice's next delta. Return how many bytes it takes, as far as characters are bytes."""
        self._texts.append(delta.text)
        self.token_ids += delta.token_ids
        self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason
        self.mean_logprob = delta.mean_logprob
        num_bytes = len(delta.text) + TOKEN_BYTES * len(delta.token_ids)
        return num_bytes + self.logprobs.add(delta.positions)


class WholeChoices:
    """Collects all choices' deltas."""

    def __init__(self, open_logprobs: Callable[[], Logprobs], best_of: BestOf | None) -> None:
        self._open_logprobs, self._best_of = open_logprobs, best_of
        self._choices: dict[int, WholeChoice] = {}

    def add(self, delta: Delta) -> int:
        """Append a delta to the choice that it is of. Return how many bytes it takes."""
        if delta.index not in self._choices:
            self._choices[delta.index] = WholeChoice(delta.index, self._open_logprobs())
        return self._choices[delta.index].add(delta)

    def __iter__(self) -> Iterator[tuple[int, WholeChoice]]:
        """Yield each choice of the answer and its index, in order."""
        choices = [self._choices[number] for number in sorted(self._choices)]
        return enumerate(choices if self._best_of is None else _choose_best(choices, self._best_of))


def _choose_best(choices: Sequence[WholeChoice], best_of: BestOf) -> list[WholeChoice]:
    """Return the likeliest choices of each prompt, the best one first."""
    best: list[WholeChoice] = []
    for begin in range(0, len(choices), best_of.num_drawn):
        drawn = choices[begin : begin + best_of.num_drawn]
        best += sorted(drawn, key=lambda choice: -choice.mean_logprob)[: best_of.num_kept]
    return best


class OpenAiWriter(Writer):
    """The common part of completions and chats: choices side by side, and chunks of one shape."""

    answer_object: ClassVar[str]
    """The `object` of a whole answer."""
    chunk_object: ClassVar[str]
    """The `object` of a stream's chunks."""
    logprobs_type: ClassVar[type[ChatLogprobs | CompletionLogprobs]]

    def __init__(self, spec: AnswerSpec) -> None:
        super().__init__(spec)
        self._spec = spec
        self._head = spec.envelope.chunk_head(self.chunk_object)
        self._tail = spec.envelope.chunk_tail
        self._choices = WholeChoices(self._open_logprobs, spec.best_of)
        self._scores: dict[int, PromptLogprobsJson] = {}

    @property
    def tail(self) -> bytes:
        """A chunk from the end of its list of choices."""
        return self._tail if self.read_usage is None else self._tail_with(self.read_usage())

    @property
    def num_reasoning_tokens(self) -> int | None:
        """Tokens of all choices' reasoning; None if the writer splits off no reasoning."""
        return None

    def encode_opening(self, num_choices: int, usage: Usage) -> bytes:
        """Return nothing."""
        del num_choices, usage
        return b""

    def encode_end(self, usage: Usage) -> bytes:
        """Return the chunk that holds the usage, where it is asked for, and the end."""
        if not self._envelope.includes_usage:
            return DONE
        return self._envelope.encode_usage_chunk(self.chunk_object, self._complete(usage)) + DONE

    def add_delta(self, delta: Delta) -> int:
        """Collect a delta for a whole answer. Return how many bytes it takes."""
        num_bytes = self._scores_of(delta.index).add(delta.scores) if delta.scores else 0
        return num_bytes + self._choices.add(delta)

    def encode_answer(self, usage: Usage) -> bytes:
        """Return the whole answer: each choice is the sum of its deltas."""
        choices = (self._encode_choice(index, choice) for index, choice in self._choices)
        others = self._encode_others()
        return self._envelope.encode_answer(self.answer_object, choices, self._complete(usage), others)

    def _encode_others(self) -> list[bytes]:
        """Return further fields of a whole answer, in pieces, each behind a comma."""
        return []

    def _encode_scores(self, index: int) -> list[bytes]:
        """Return the field with the log-probabilities of a choice's prompt, in the same way."""
        if not self._envelope.has_prompt_logprobs:
            return []
        return [b',"prompt_logprobs":', *self._scores_of(index).encode()]

    def _scores_of(self, index: int) -> PromptLogprobsJson:
        if index not in self._scores:
            self._scores[index] = PromptLogprobsJson(self._spec.tokenizer)
        return self._scores[index]

    @abstractmethod
    def _encode_choice(self, index: int, choice: WholeChoice) -> list[bytes]:
        """Return a whole choice's JSON, in pieces."""

    def _encode_prompt(self, choice: int) -> bytes:
        """Return the field of a prompt's token ids; nothing for a client that did not ask."""
        ids = self._envelope.prompt_ids
        return b"" if ids is None else b',"prompt_token_ids":' + ids[choice]

    def _encode_ids(self, token_ids: list[int]) -> bytes:
        """Return a choice's field of token ids; nothing for a client that did not ask."""
        if self._envelope.prompt_ids is None:
            return b""
        return b',"token_ids":' + orjson.dumps(token_ids)

    def _tail_with(self, usage: Usage) -> bytes:
        return self._envelope.encode_tail(self._complete(usage))

    def _complete(self, usage: Usage) -> Usage:
        return usage._replace(num_reasoning_tokens=self.num_reasoning_tokens)

    def _open_logprobs(self) -> Logprobs:
        if not self._spec.has_logprobs:
            return NO_LOGPROBS
        return self.logprobs_type(self._spec.tokenizer, is_by_id=self._spec.names_tokens_by_id)


class CompletionWriter(OpenAiWriter):
    """Writes text completions."""

    id_prefix = "cmpl-"
    answer_object = chunk_object = "text_completion"
    logprobs_type = CompletionLogprobs

    def encode_delta(self, delta: Delta) -> bytes:
        """Return a chunk with the delta's text."""
        has_begun = delta.num_tokens > 0 or delta.finish_reason is not None  # else it is of the prompt
        is_first = has_begun and delta.num_tokens == len(delta.token_ids)
        logprobs = self._open_logprobs()
        logprobs.add(delta.positions)
        return b'%b{"index":%d,"text":%b,"logprobs":%b,%b%b}%b' % (
            self._head,
            delta.index,
            orjson.dumps(delta.text),
            b"".join(logprobs.encode()),
            encode_ending(delta.finish_reason, delta.stop_reason),
            self._encode_ids(delta.token_ids) + (self._encode_prompt(delta.index) if is_first else b""),
            self.tail,
        )

    def _encode_choice(self, index: int, choice: WholeChoice) -> list[bytes]:
        return [
            b'{"index":%d,"text":%b,"logprobs":' % (index, orjson.dumps(choice.text)),
            *choice.logprobs.encode(),
            b"," + encode_ending(choice.finish_reason, choice.stop_reason),
            *self._encode_scores(choice.number),
            self._encode_ids(choice.token_ids) + self._encode_prompt(index) + b"}",
        ]


def encode_ending(finish: str | None, stop: str | int | None) -> bytes:
    """Return a choice's fields that say why it has ended; a chunk before its end has no `stop_reason`."""
    if finish is None:
        return b'"finish_reason":null'
    return b'"finish_reason":"%b","stop_reason":%b' % (finish.encode(), orjson.dumps(stop))
