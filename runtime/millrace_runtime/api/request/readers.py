"""The reader of each dialect, by its name, which a job for the text worker has too."""

from collections.abc import Callable

from millrace_runtime.api.request.anthropic.body import read_anthropic, read_anthropic_prompt
from millrace_runtime.api.request.generation_request import Reading
from millrace_runtime.api.request.openai import read_chat, read_completion
from millrace_runtime.api.request.responses.body import read_responses
from millrace_runtime.api.request.tokenizing import read_detokenize, read_tokenize

READERS: dict[str, Callable[[bytes | bytearray], Reading]] = {
    "completion": read_completion,
    "chat": read_chat,
    "responses": read_responses,
    "messages": read_anthropic,
    "messages/count_tokens": read_anthropic_prompt,
    "tokenize": read_tokenize,
    "detokenize": read_detokenize,
}
