"""The dialects of the endpoints that generate: how each reads a body and writes an answer."""

from dataclasses import dataclass

from millrace_runtime.api.answer.anthropic import MessagesWriter
from millrace_runtime.api.answer.chat import ChatWriter
from millrace_runtime.api.answer.openai import CompletionWriter
from millrace_runtime.api.answer.responses import ResponsesWriter
from millrace_runtime.api.answer.writer import Writer


@dataclass(frozen=True)
class Dialect:
    """How one endpoint reads and writes."""

    name: str
    """The key of its reader in READERS."""
    writer: type[Writer]


COMPLETIONS = Dialect("completion", CompletionWriter)
CHAT = Dialect("chat", ChatWriter)
RESPONSES = Dialect("responses", ResponsesWriter)
MESSAGES = Dialect("messages", MessagesWriter)
