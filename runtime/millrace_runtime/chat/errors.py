"""The failures of text handling.

ChatError
├── TokenizerError          the model's tokenizer files are absent or unusable
├── TokenizingError         the tokenizer's library failed on a text or on tokens
├── TemplateError           the chat template refused the messages, or there is none
├── BrokenTemplateError     the chat template is itself wrong
├── BodyRefusedError        a request's body is at fault
├── BadModelTextError       the text worker can't serve the model, whatever the request
└── TextWorkerError         the text worker gave no answer
    ├── TextTimeoutError    the job ran past its time limit and was killed
    ├── TextJobFailedError  the tokenizer failed on this job; the worker goes on
    ├── TextMemoryError     the job needed more memory than the worker may use
    ├── TextWorkerDiedError the worker ended during the job
    └── NoTextWorkerError   no worker takes the job: none can be started, or it was closed
"""


class ChatError(Exception):
    """Any failure with text. The client may read its message."""


class TokenizerError(ChatError):
    """The model's tokenizer files are absent or unusable; the message says which."""


class TokenizingError(ChatError):
    """The tokenizer's library failed on a text or on tokens."""


class TemplateError(ChatError):
    """The chat template refused the messages, or there is none."""


class BrokenTemplateError(ChatError):
    """The chat template is itself wrong, with any messages."""


class BadModelTextError(ChatError):
    """The text worker can't serve this model, whatever the request: its files are at fault."""


class BodyRefusedError(ChatError):
    """A request's body is at fault; `param` names the part."""

    def __init__(self, message: str, param: str | None, code: str | None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class TextWorkerError(ChatError):
    """The text worker gave no answer."""


class TextTimeoutError(TextWorkerError):
    """The job ran past its time limit and was killed."""


class TextJobFailedError(TextWorkerError):
    """The tokenizer failed on this job; the worker goes on."""


class TextMemoryError(TextWorkerError):
    """The job needed more memory than the worker may use."""


class TextWorkerDiedError(TextWorkerError):
    """The worker ended during the job."""


class NoTextWorkerError(TextWorkerError):
    """No worker takes the job: none can be started, or it was closed."""
