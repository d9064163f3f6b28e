"""POST /v1/completions: writing answers."""

import orjson

from millrace_runtime.api.answer.choice import Delta
from millrace_runtime.api.answer.envelope import encode_reason
from millrace_runtime.api.answer.logprobs import CompletionLogprobs
from millrace_runtime.api.answer.whole_choice import WholeChoice
from millrace_runtime.api.answer.writer import Writer


class CompletionWriter(Writer):
    """Writes text completions."""

    id_prefix = "cmpl-"
    answer_object = chunk_object = "text_completion"
    logprobs_type = CompletionLogprobs

    def encode_delta(self, delta: Delta) -> bytes:
        """Return a chunk with the delta's text."""
        logprobs = self._open_logprobs()
        logprobs.add(delta.positions)
        return b'%b{"index":%d,"text":%b,"logprobs":%b,"finish_reason":%b}%b' % (
            self._head,
            delta.index,
            orjson.dumps(delta.text),
            b"".join(logprobs.encode()),
            encode_reason(delta.finish_reason),
            self._tail,
        )

    def _encode_choice(self, index: int, choice: WholeChoice) -> list[bytes]:
        return [
            b'{"index":%d,"text":%b,"logprobs":' % (index, orjson.dumps(choice.text)),
            *choice.logprobs.encode(),
            b',"finish_reason":%b}' % encode_reason(choice.finish_reason),
        ]
