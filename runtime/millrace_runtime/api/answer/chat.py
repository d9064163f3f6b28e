"""POST /v1/chat/completions: the assistant's messages, with reasoning and tool calls of their own."""

from typing import Any

import orjson

from millrace_runtime.api.answer.choice import Delta
from millrace_runtime.api.answer.logprobs import ChatLogprobs
from millrace_runtime.api.answer.message import Call, Message
from millrace_runtime.api.answer.openai import OpenAiWriter, WholeChoice, encode_ending
from millrace_runtime.api.answer.writer import AnswerSpec
from millrace_runtime.api.usage import Usage
from millrace_runtime.chat.parsers.answer import AnswerDelta
from millrace_runtime.protocol.messages import FINISH_STOP

_FINISH_CALLS = "tool_calls"


class ChatWriter(OpenAiWriter):
    """Writes messages."""

    id_prefix = "chatcmpl-"
    answer_object = "chat.completion"
    chunk_object = "chat.completion.chunk"
    logprobs_type = ChatLogprobs

    def __init__(self, spec: AnswerSpec) -> None:
        super().__init__(spec)
        self._messages: dict[int, Message] = {}

    def encode_opening(self, num_choices: int, usage: Usage) -> bytes:
        """Return each choice's first chunk, which names the role."""
        rest = self._tail if self.read_usage is None else self._tail_with(usage)
        tail = b"]" + self._encode_prompt(0) + rest[1:]
        return b"".join(
            b'%b{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}%b'
            % (self._head, index, tail)
            for index in range(num_choices)
        )

    def encode_delta(self, delta: Delta) -> bytes | None:
        """Return a chunk with the content, reasoning or calls of a delta; None while its kind is open."""
        finish = delta.finish_reason
        if self._open_message is None:
            fields: dict[str, Any] = {"content": delta.text} if delta.text or delta.positions else {}
        else:
            message = self._message(delta.index)
            fields = _encode_split(message, message.accept(delta))
            finish = _FINISH_CALLS if message.calls and finish == FINISH_STOP else finish
            if not fields and finish is None and not delta.positions and not delta.token_ids:
                return None
        logprobs = self._open_logprobs()
        logprobs.add(delta.positions)
        return b'%b{"index":%d,"delta":%b,"logprobs":%b,%b%b}%b' % (
            self._head,
            delta.index,
            orjson.dumps(fields),
            b"".join(logprobs.encode()),
            encode_ending(finish, delta.stop_reason),
            self._encode_ids(delta.token_ids),
            self.tail,
        )

    def add_delta(self, delta: Delta) -> int:
        """Collect a delta for a whole answer. Return how many bytes it takes."""
        if self._open_message is not None:
            self._message(delta.index).accept(delta)
        if delta.index:
            delta.scores = ()  # the prompt is the same for all choices, and the answer scores it once
        return super().add_delta(delta)

    def _encode_others(self) -> list[bytes]:
        return [*self._encode_scores(0), self._encode_prompt(0)]

    @property
    def num_reasoning_tokens(self) -> int | None:
        """Tokens of all choices' reasoning; None if the writer splits off no reasoning."""
        if self._open_message is None:
            return None
        return sum(message.num_reasoning_tokens for message in self._messages.values())

    def _message(self, index: int) -> Message:
        if index not in self._messages:
            assert self._open_message is not None
            self._messages[index] = self._open_message()
        return self._messages[index]

    def _encode_choice(self, index: int, choice: WholeChoice) -> list[bytes]:
        fields: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
        finish = choice.finish_reason
        if self._open_message is not None:
            message = self._message(index)
            fields |= _encode_whole(message)
            finish = _FINISH_CALLS if message.calls and finish == FINISH_STOP else finish
        return [
            b'{"index":%d,"message":%b,"logprobs":' % (index, orjson.dumps(fields)),
            *choice.logprobs.encode(),
            b",%b%b}" % (encode_ending(finish, choice.stop_reason), self._encode_ids(choice.token_ids)),
        ]


def _encode_split(message: Message, split: AnswerDelta) -> dict[str, Any]:
    """Return the fields of a chunk's delta."""
    fields: dict[str, Any] = _encode_reasoning(split.reasoning) if split.reasoning else {}
    if split.content:
        fields["content"] = split.content
    calls: list[dict[str, Any]] = []
    for call in split.calls:
        head = {} if call.name is None else _encode_call(message.call_of(call), call.arguments)
        calls.append({"index": call.index, "function": {"arguments": call.arguments}} | head)
    return fields | ({"tool_calls": calls} if calls else {})


def _encode_whole(message: Message) -> dict[str, Any]:
    """Return the fields of a whole message."""
    content = message.content
    fields: dict[str, Any] = {"content": None if message.calls and not content else content}
    if message.reasoning:
        fields |= _encode_reasoning(message.reasoning)
    if message.calls:
        fields["tool_calls"] = [_encode_call(call, call.json) for call in message.calls]
    return fields


def _encode_call(call: Call, arguments: str) -> dict[str, Any]:
    return {
        "id": call.call_id,
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    }


def _encode_reasoning(text: str) -> dict[str, Any]:
    """Return it by both names: DeepSeek's, which most clients read, and the one that vLLM took later."""
    return {"reasoning_content": text, "reasoning": text}
