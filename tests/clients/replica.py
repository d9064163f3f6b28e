"""The replica as its clients see it."""

from pathlib import Path
from typing import NamedTuple


class Replica(NamedTuple):
    """Where it is, and the folder of its tokenizer."""

    url: str
    model: Path

    @property
    def openai_url(self) -> str:
        return self.url + "/v1"
