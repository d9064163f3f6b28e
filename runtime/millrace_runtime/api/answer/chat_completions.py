"""POST /v1/chat/completions: writing answers."""

import orjson

from millrace_runtime.api.answer.choice import Delta
from millrace_runtime.api.answer.envelope import encode_reason
from millrace_runtime.api.answer.logprobs import ChatLogprobs
from millrace_runtime.api.answer.whole_choice import WholeChoice
from millrace_runtime.api.answer.writer import Writer


class ChatWriter(Writer):
    """Writes the assistant's messages."""

    id_prefix = "chatcmpl-"
    answer_object = "chat.completion"
    chunk_object = "chat.completion.chunk"
    logprobs_type = ChatLogprobs

    def encode_opening(self, num_choices: int) -> bytes:
        """Return each choice's first chunk, which names the role."""
        return b"".join(
            b'%b{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}%b'
            % (self._head, index, self._tail)
            for index in range(num_choices)
        )

    def encode_delta(self, delta: Delta) -> bytes:
        """Return a chunk with the delta's text as content."""
        logprobs = self._open_logprobs()
        logprobs.add(delta.positions)
        content = b'{"content":%b}' % orjson.dumps(delta.text) if delta.text or delta.positions else b"{}"
        return b'%b{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":%b}%b' % (
            self._head,
            delta.index,
            content,
            b"".join(logprobs.encode()),
            encode_reason(delta.finish_reason),
            self._tail,
        )

    def _encode_choice(self, index: int, choice: WholeChoice) -> list[bytes]:
        message = {"role": "assistant", "content": choice.text, "refusal": None}
        return [
            b'{"index":%d,"message":%b,"logprobs":' % (index, orjson.dumps(message)),
            *choice.logprobs.encode(),
            b',"finish_reason":%b}' % encode_reason(choice.finish_reason),
        ]
