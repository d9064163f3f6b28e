"""Log-probabilities as JSON, written when they arrive.

One request may ask for 16 choices of 2000 tokens with 20 alternatives each. Kept as objects and encoded at
the end, these stopped the event loop for 3.8 s and took 349 MB.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Protocol

import orjson

from millrace_runtime.api.answer.prompt import Position, ScoredToken
from millrace_runtime.chat.tokenizer import Tokenizer
from millrace_runtime.protocol.step import TokenLogprobs


class Logprobs(Protocol):
    """Log-probabilities of one chunk, or of one choice of a whole answer."""

    def add(self, positions: Sequence[Position]) -> int:
        """Append more positions, in order. Return how many bytes they take."""

    def encode(self) -> list[bytes]:
        """Return their JSON in pieces: together they may be megabytes, which should be copied once."""


class ChatLogprobs:
    """In the shape of POST /v1/chat/completions."""

    def __init__(self, tokenizer: Tokenizer, *, is_by_id: bool = False) -> None:
        """`is_by_id`: each token is named by its id."""
        self._entries = _chat_entries(tokenizer, is_by_id=is_by_id)
        self._first_entries = _chat_entries(tokenizer, is_by_id=is_by_id, drops_space=True)
        self._positions = _JsonList()

    def add(self, positions: Sequence[Position]) -> int:
        """Append more positions, in order. Return how many bytes they take."""
        return self._positions.add([self._encode_position(position) for position in positions])

    def encode(self) -> list[bytes]:
        """Return their JSON in pieces."""
        return [b'{"content":', *self._positions.encode(), b',"refusal":null}']

    def _encode_position(self, position: Position) -> bytes:
        entries = self._first_entries if position.drops_space else self._entries
        assert position.logprobs is not None, "a message echoes no prompt"
        drawn, *others = _encode_numbers(position.logprobs)
        tops = zip(position.logprobs.top_tokens, others, strict=True)
        return b'%b%b,"top_logprobs":[%b]}' % (
            entries[position.token],
            drawn,
            b",".join([b"%b%b}" % (entries[token], number) for token, number in tops]),
        )


class CompletionLogprobs:
    """In the shape of POST /v1/completions: lists side by side."""

    def __init__(self, tokenizer: Tokenizer, *, is_by_id: bool = False) -> None:
        """`is_by_id`: each token is named by its id."""
        self._labels = self._first_labels = _Spelling(_label_id)
        if not is_by_id:
            self._labels = _completion_labels(tokenizer)
            self._first_labels = _completion_labels(tokenizer, drops_space=True)
        self._tokens, self._drawn, self._tops, self._offsets = (_JsonList() for _ in range(4))

    def add(self, positions: Sequence[Position]) -> int:
        """Append more positions, in order. Return how many bytes they take."""
        labels = [self._find_labels(position)[position.token] for position in positions]
        numbers = [
            [b"null"] if position.logprobs is None else _encode_numbers(position.logprobs)
            for position in positions
        ]
        return (
            self._tokens.add(labels)
            + self._drawn.add([drawn for drawn, *_ in numbers])
            + self._tops.add(list(map(self._encode_top, positions, numbers)))
            + self._offsets.add([b"%d" % position.text_offset for position in positions])
        )

    def encode(self) -> list[bytes]:
        """Return their JSON in pieces."""
        return [
            b'{"tokens":', *self._tokens.encode(),
            b',"token_logprobs":', *self._drawn.encode(),
            b',"top_logprobs":', *self._tops.encode(),
            b',"text_offset":', *self._offsets.encode(), b"}",
        ]  # fmt: skip

    def _find_labels(self, position: Position) -> "_Spelling":
        return self._first_labels if position.drops_space else self._labels

    def _encode_top(self, position: Position, numbers: list[bytes]) -> bytes:
        if position.logprobs is None:
            return b"null"
        drawn, *others = numbers
        tops = dict(zip(position.logprobs.top_tokens, others, strict=True)) | {position.token: drawn}
        entries: dict[bytes, bytes] = {}
        labels = self._find_labels(position)
        for token, number in tops.items():
            label = labels[token]
            # A more likely token may have the same text.
            entries[_label_id(token) if label in entries else label] = number
        return b"{%b}" % b",".join([b"%b:%b" % pair for pair in entries.items()])


class PromptLogprobsJson:
    """vLLM's `prompt_logprobs`: for each token of a prompt, itself and the likely ones by their ids."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._entries = _prompt_entries(tokenizer)
        self._tokens = _JsonList()
        self._tokens.add([b"null"])  # nothing comes before the first token

    def add(self, scores: Sequence[ScoredToken]) -> int:
        """Append more tokens, in order. Return how many bytes they take."""
        return self._tokens.add([self._encode_token(scored) for scored in scores])

    def encode(self) -> list[bytes]:
        """Return their JSON in pieces."""
        return self._tokens.encode()

    def _encode_token(self, scored: ScoredToken) -> bytes:
        drawn, *others = _encode_numbers(scored.logprobs)
        entries = self._entries
        tops = zip(scored.logprobs.top_tokens, others, strict=True)
        likely = [
            entries[token] % (number, rank)
            for rank, (token, number) in enumerate(tops, 1)
            if token != scored.token
        ]
        return b"{%b}" % b",".join([entries[scored.token] % (drawn, scored.rank), *likely])


class _JsonList:
    """A list of JSON values that grows by several at a time."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def add(self, values: list[bytes]) -> int:
        if not values:
            return 0
        separator = b"," if self._pieces else b""
        self._pieces.append(separator + b",".join(values))
        return len(self._pieces[-1])

    def encode(self) -> list[bytes]:
        return [b"[", *self._pieces, b"]"]


class _NoLogprobs:
    """For a request that asks for no log-probabilities."""

    def add(self, positions: Sequence[Position]) -> int:
        """Ignore the positions."""
        del positions
        return 0

    def encode(self) -> list[bytes]:
        """Return null."""
        return [b"null"]


NO_LOGPROBS: Logprobs = _NoLogprobs()


class _Spelling(dict[int, bytes]):
    """Tokens as JSON, each spelled once."""

    def __init__(self, spell: Callable[[int], bytes]) -> None:
        self._spell = spell

    def __missing__(self, token: int) -> bytes:
        spelled = self[token] = self._spell(token)
        return spelled


def _spell(tokenizer: Tokenizer, token: int, *, drops_space: bool) -> bytes:
    """Return the bytes of a token, where a leading space is no text if it is dropped."""
    data = tokenizer.token_bytes(token)
    return data.removeprefix(b" ") if drops_space else data


@lru_cache(maxsize=4)  # a process has one tokenizer
def _chat_entries(tokenizer: Tokenizer, *, is_by_id: bool, drops_space: bool = False) -> _Spelling:
    """Return each token's entry up to the number at its end."""

    def spell(token: int) -> bytes:
        data = _spell(tokenizer, token, drops_space=drops_space)
        name = f"token_id:{token}" if is_by_id else data.decode(errors="replace")
        return orjson.dumps({"token": name, "bytes": list(data)})[:-1] + b',"logprob":'

    return _Spelling(spell)


@lru_cache(maxsize=2)
def _completion_labels(tokenizer: Tokenizer, *, drops_space: bool = False) -> _Spelling:
    """Return each token's text. For a token that is not valid UTF-8 it is `bytes:` and the bytes."""

    def spell(token: int) -> bytes:
        data = _spell(tokenizer, token, drops_space=drops_space)
        try:
            return orjson.dumps(data.decode())
        except UnicodeDecodeError:
            return orjson.dumps("bytes:" + data.decode(errors="backslashreplace"))

    return _Spelling(spell)


@lru_cache(maxsize=1)
def _prompt_entries(tokenizer: Tokenizer) -> _Spelling:
    """Return each token's entry, with places for its log-probability and its rank."""

    def spell(token: int) -> bytes:
        text = orjson.dumps(tokenizer.token_bytes(token).decode(errors="replace")).replace(b"%", b"%%")
        return b'"%d":{"logprob":%%b,"rank":%%d,"decoded_token":%b}' % (token, text)

    return _Spelling(spell)


def _label_id(token: int) -> bytes:
    return b'"token_id:%d"' % token


def _encode_numbers(logprobs: TokenLogprobs) -> list[bytes]:
    """Return the log-probabilities as JSON: the drawn token's, then the others'."""
    return orjson.dumps([logprobs.drawn, *logprobs.top_logprobs])[1:-1].split(b",")
