"""What we make below $PEERS where it is absent: checkpoints, and llama.cpp's GGUF files of them."""

import shutil
import subprocess
from pathlib import Path

from benchmarks.runtime.errors import EngineError, UsageError
from benchmarks.runtime.models.checkpoint import find_difference, write_model
from benchmarks.runtime.models.subjects import Subject
from benchmarks.runtime.peers import CHECKPOINT, CONVERTER, QUANTISER, Peer
from benchmarks.runtime.progress import report

CONVERT_SECONDS = 1200
QUANTISED = {"int8": "Q8_0", "int4": "Q4_0"}


def find_checkpoint(subject: Subject, peers: Path) -> Path:
    """Return the checkpoint of all engines, and write it where it is absent. Raises UsageError."""
    folder = peers / CHECKPOINT.format(stem=subject.stem)
    if not folder.exists():
        report(f"writing {folder}")
        partial = folder.with_name(f"{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        write_model(partial, subject.shape).rename(folder)
    if (difference := find_difference(folder, subject.shape)) is not None:
        raise UsageError(
            f"{folder} is another model: in its config {difference}. Remove it, and the peers' models of it:"
            " the next run writes the one that is compared"
        )
    return folder


def convert_for(peer: Peer, subject: Subject, peers: Path, precision: str) -> None:
    """Make a peer's absent model from the checkpoint, where its converter is there. Raises EngineError."""
    target = peers / peer.name_model(subject.stem, precision)
    if target.suffix != ".gguf" or target.exists() or not (peers / CONVERTER).exists():
        return
    if precision == "bf16":
        checkpoint = peers / CHECKPOINT.format(stem=subject.stem)
        options = ["--outfile", str(target), "--outtype", "bf16"]
        _convert(target, [str(peers / CONVERTER), str(checkpoint), *options])
        return
    convert_for(peer, subject, peers, "bf16")
    plain = peers / peer.name_model(subject.stem, "bf16")
    _convert(target, [str(peers / QUANTISER), str(plain), str(target), QUANTISED[precision]])


def _convert(target: Path, command: list[str]) -> None:
    report(f"writing {target}")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CONVERT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        target.unlink(missing_ok=True)
        raise EngineError(f"{command[0]} can't be run: {error}") from error
    if done.returncode:
        target.unlink(missing_ok=True)
        raise EngineError(f"{command[0]} failed: {(done.stderr.strip() or 'without a word')[-300:]}")
