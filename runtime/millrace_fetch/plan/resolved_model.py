"""What is known of a model before anything of it is fetched, and the file that tells it."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from millrace_fetch.errors import FolderError
from millrace_fit.facts import ModelFacts


class Resolved(NamedTuple):
    """A revision of a model, how much a fetch of it brings, and what is known of it."""

    revision: str | None
    """None of a folder of this machine, which has no revisions."""
    num_files: int
    num_bytes: int | None
    """None where the source does not say the size of each file."""
    facts: ModelFacts | None
    """None where all would have to be fetched: of an image in which a look saw no config.json, and of a
    server that gives no parts of a file."""

    def render(self) -> str:
        """Return it as one line of JSON, of less than 2,000 bytes in UTF-8."""
        found: dict[str, Any] = {} if self.revision is None else {"revision": self.revision}
        found["numFiles"] = self.num_files
        if self.num_bytes is not None:
            found["numBytes"] = self.num_bytes
        if self.facts is not None:
            found["facts"] = json.loads(self.facts.to_json())
        return json.dumps(found, separators=(",", ":"), ensure_ascii=False)

    def write(self, path: Path) -> None:
        """Write it into a file. Raises FolderError."""
        try:
            path.write_text(self.render(), encoding="utf-8")
        except OSError as error:
            raise FolderError(f"{path} can't be written: {error.strerror}") from error
