"""The text worker's process: it runs one job after the other, until its socket closes.

python -m millrace_runtime.chat.text_process MODEL_PATH PARENT_PID SOCKET_FD MEMORY_BYTES
"""

import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from millrace_runtime.chat.errors import (
    BodyRefusedError,
    BrokenTemplateError,
    ChatError,
    TemplateError,
    TokenizingError,
)
from millrace_runtime.chat.jobs import (
    Encoded,
    EncodeTexts,
    FromTextWorker,
    JobFailed,
    JobRefused,
    MemoryExceeded,
    ReadBody,
    RenderChat,
    TextJob,
    ToTextWorker,
    WorkerReady,
    WorkerRefused,
)
from millrace_runtime.chat.template import ChatTemplate
from millrace_runtime.chat.text_bound import TextBound, read_text_bound
from millrace_runtime.chat.tokenizer import Tokenizer
from millrace_runtime.process import end_with_parent
from millrace_runtime.protocol.encoding import FrameDecoder, encode_frame, pack_tokens

_READ_BYTES = 1 << 20
_MEMORY_PER_BYTE = 512
"""The most memory for a byte of text: 440 bytes in the tokenizer, if each letter and each line break is a
piece of its own, and some for the copies of the text. Without memory the tokenizer's library raises no
MemoryError: it ends the process."""
Reader = Callable[[str, bytes], tuple[TextJob | list[list[int]], bytes]]
"""Takes a dialect and a body. Returns the prompts, as token ids of 31 bits or a job, and the encoded request.

Raises BodyRefusedError.
"""


def _refuse_body(dialect: str, body: bytes) -> NoReturn:
    raise BodyRefusedError(f"this worker reads no body of {len(body)} bytes in {dialect}", None, None)


class JobRunner:
    """Answers jobs with a model's tokenizer and template."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        max_text_bytes: int,
        bound: TextBound | None,
        read_body: Reader,
    ) -> None:
        """`max_text_bytes` is the longest text that fits into memory.

        `bound` counts the fewest tokens that a text can have; None: they are not known. Raises
        BrokenTemplateError for a chat template that is wrong whatever the messages are.
        """
        self._tokenizer = tokenizer
        self._max_text_bytes = max_text_bytes
        self._bound = bound
        self._read_body = read_body
        config = tokenizer.config
        self._template = (
            ChatTemplate(config.chat_templates, config.special_tokens) if config.chat_templates else None
        )

    def answer(self, message: ToTextWorker) -> FromTextWorker:
        """Return the job's answer. A failure is an answer too: further jobs wait for this worker."""
        try:
            return self._run(message)
        except MemoryError:
            return MemoryExceeded()
        except BodyRefusedError as error:
            return JobRefused(str(error), error.param, error.code)
        except OverflowError:
            return JobRefused("the request has a whole number beyond 64 bits: send a smaller one")
        except Exception as error:  # noqa: BLE001  as said above
            return _answer_failure(error)

    def _run(self, message: ToTextWorker) -> FromTextWorker:
        match message.job:
            case ReadBody() as job:
                return self._read(job, message.max_prompt_tokens)
            case job:
                return Encoded(self._encode(job, message.max_prompt_tokens))

    def _read(self, job: ReadBody, max_tokens: int | None) -> Encoded:
        prompts, request = self._read_body(job.dialect, job.body)
        if not isinstance(prompts, list):
            return Encoded(self._encode(prompts, max_tokens), request)
        return Encoded([pack_tokens(tokens) for tokens in prompts], request)

    def _encode(self, job: TextJob, max_tokens: int | None) -> list[bytes]:
        match job:
            case RenderChat():
                texts = [self._require_template().render(job)]
            case EncodeTexts(texts):
                pass
        self._refuse_too_long(texts, None if job.is_cut else max_tokens)
        prompts = self._tokenizer.encode_batch(texts, add_special_tokens=job.adds_special_tokens)
        return [pack_tokens(tokens) for tokens in prompts]

    def _refuse_too_long(self, texts: list[str], max_tokens: int | None) -> None:
        sizes = [len(text.encode(errors="surrogatepass")) for text in texts]
        if self._bound is not None and max_tokens is not None:
            for text, size in zip(texts, sizes, strict=True):
                if size > max_tokens:  # else it fits even with a token for each byte
                    _refuse_beyond_context(self._bound.count_least_tokens(text), max_tokens)
        if sum(sizes) > self._max_text_bytes:
            raise BodyRefusedError(
                f"the prompt has {sum(sizes)} bytes, and this replica has memory to tokenise at most "
                f"{self._max_text_bytes} bytes at once: shorten the prompt",
                None,
                None,
            )

    def _require_template(self) -> ChatTemplate:
        if self._template is None:
            raise TemplateError("this model has no chat template: use /v1/completions, or give it one")
        return self._template


def _answer_failure(error: Exception) -> FromTextWorker:
    """Return the answer for an error: the client's, the model's files', or ours."""
    if not isinstance(error, ChatError):
        return JobFailed(f"{type(error).__name__}: {error}")
    is_models = isinstance(error, (TokenizingError, BrokenTemplateError))
    return JobFailed(str(error)) if is_models else JobRefused(str(error))


def _refuse_beyond_context(least_tokens: int, max_tokens: int) -> None:
    if least_tokens > max_tokens:
        raise BodyRefusedError(
            f"the prompt has at least {least_tokens} tokens and the model's limit is {max_tokens}: "
            "shorten the prompt",
            None,
            "context_length_exceeded",
        )


def serve_jobs(connection: socket.socket, runner: JobRunner) -> None:
    """Answer jobs until the peer closes."""
    decoder: FrameDecoder[ToTextWorker] = FrameDecoder(ToTextWorker)
    connection.sendall(encode_frame(WorkerReady()))
    while data := connection.recv(_READ_BYTES):
        for message in decoder.feed(data):
            connection.sendall(encode_frame(runner.answer(message)))


def _used_bytes() -> int:
    """Return how much data memory this process uses."""
    num_data_pages = int(Path("/proc/self/statm").read_text().split()[5])
    return num_data_pages * resource.getpagesize()


def main(argv: list[str], read_body: Reader = _refuse_body) -> int:
    """Limit memory, load the model's text files, and serve."""
    model_path, parent_pid, fd, memory_bytes = Path(argv[0]), *map(int, argv[1:])
    end_with_parent(parent_pid)  # even in the middle of a job
    # Data, not address space: allocators reserve far more addresses than they use.
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # A Ctrl-C or a drain reaches the whole process group. This process ends when its socket closes.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with socket.socket(fileno=fd) as connection:
        tokenizer, bound = Tokenizer.load(model_path), read_text_bound(model_path)
        max_text_bytes = max(0, memory_bytes - _used_bytes()) // _MEMORY_PER_BYTE
        try:
            runner = JobRunner(tokenizer, max_text_bytes, bound, read_body)
        except BrokenTemplateError as error:
            connection.sendall(encode_frame(WorkerRefused(str(error))))
            return 0
        serve_jobs(connection, runner)
    return 0


if __name__ == "__main__":
    sys.stdout.flush()
    # Skip the interpreter's teardown: nothing here needs it, and a drain should not wait for it.
    os._exit(main(sys.argv[1:]))
