"""What `millrace serve` tells the HTTP process."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ApiSettings:
    """Limits and names of one replica's HTTP side."""

    served_name: str
    """The model's name in requests, answers and metric labels."""
    max_requests: int = 1024
    """Sequences (choices of prompts) in flight, waiting ones included; more are answered 429."""
    max_queued_tokens: int = 1 << 20
    """Prompt tokens of sequences that have no first token yet; more are answered 429."""
    max_body_bytes: int = 8 << 20
    """A longer request body is answered 413."""
