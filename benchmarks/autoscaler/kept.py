"""Results written down as they come, so that a run of an hour that was cut off goes on where it was."""

import json
from dataclasses import asdict
from pathlib import Path

from benchmarks.autoscaler.jobs import Job, Result


class KeptError(Exception):
    """A file can't be gone on with; the text says what to do."""


class Kept:
    """Results in a file: a line that says what they follow from, then a line each."""

    def __init__(self, path: Path, origin: str) -> None:
        """Read what is there. Raises KeptError where it is of another `origin`, or of something else."""
        self._path = path
        self.results = _read(path, origin) if path.exists() else {}
        """What is known."""
        # The whole file is rewritten: the last line has no end where the run was cut off while it wrote.
        lines = [json.dumps({"origin": origin}), *[_write(*one) for one in self.results.items()]]
        path.write_text("\n".join(lines) + "\n")

    def add(self, job: Job, result: Result) -> None:
        """Write one result down."""
        self.results[job] = result
        with self._path.open("a") as file:
            file.write(_write(job, result) + "\n")


def _write(job: Job, result: Result) -> str:
    return json.dumps({"job": asdict(job), "result": result._asdict()})


def _read(path: Path, origin: str) -> dict[Job, Result]:
    try:
        first, *whole, _ = path.read_text().split("\n")
        found = json.loads(first)["origin"]
        lines = [json.loads(line) for line in whole]
        results = {Job(**one["job"]): Result(**one["result"]) for one in lines}
    except (ValueError, KeyError, TypeError) as error:
        raise KeptError(f"{path} has no results of this benchmark ({error!r}): name another file") from error
    if found != origin:
        raise KeptError(f"{path} is of {found}, and this run is of {origin}: name another file")
    return results
