"""`python -m benchmarks.gpu`: what our GPU path does on a GPU; tables, and one JSON file for each part."""

import argparse
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.record import read_commit, read_date

PARTS = {
    "quantized": 240,
    "families": 200,
    "replica": 240,
    "speed": 60,
    "model": 105,
    "kernels": 140,
    "trace": 15,
    "workers": 120,
}
"""Seconds that each part takes on an H100 or H200; of the first two and the last a guess. The newest stands
first, and runs first; but `workers` stands last, because it needs two devices."""
RESULTS = Path(__file__).parents[1] / "results" / "gpu"
NO_DEVICE = 2
"""The exit status where there is nothing to measure."""


def run_part(part: str, folder: Path, origin: dict[str, Any], *, is_dry_run: bool) -> bool:
    """Run one part, write its files as it goes, and return whether all is well."""
    from benchmarks.gpu import report, runner  # noqa: PLC0415  torch, which reads the environment

    module = f"benchmarks.gpu.{part}"
    names = list(import_module(module).STEPS)
    head = {"benchmark": "gpu", "part": part, "is_dry_run": is_dry_run, **origin}
    head["device"] = runner.read_device(is_dry_run=is_dry_run)
    print(f"== {part} on {head['device']['name']}", flush=True)
    steps: list[runner.Ran] = []

    def note(step: runner.Ran) -> None:
        steps.append(step)
        print("\n".join(report.render_step(step)), flush=True)
        _write(folder / f"{part}.json", json.dumps(report.render_part(head, steps), indent=1))
        _write(folder / f"{part}.txt", "\n".join(report.render_table(steps)))

    runner.run_steps(module, names, folder, is_dry_run=is_dry_run, on_step=note)
    if tuned := report.render_tuned(steps):
        _write(folder / f"tuned-{part}.json", json.dumps(tuned, indent=1))
    return not report.has_failed(steps)


def _write(path: Path, text: str) -> None:
    """Replace a file at once: a campaign that is cut off leaves what it knew."""
    beside = path.with_suffix(".new")
    beside.write_text(text + "\n", encoding="utf-8")
    beside.replace(path)


def run_parts(parts: Sequence[str], folder: Path, origin: dict[str, Any], *, is_dry_run: bool) -> bool:
    """Run the parts, each whatever became of the others. Return whether all is well."""
    is_well = True
    for part in parts:
        try:
            is_well &= run_part(part, folder, origin, is_dry_run=is_dry_run)
        except ImportError as error:
            print(f"== {part} can't be imported: {error}", flush=True)
            is_well = False
    return is_well


def choose_parts(minutes: float) -> list[str]:
    """Return the newest parts that fit into some minutes together."""
    left, chosen = 60 * minutes, []
    for part, seconds in PARTS.items():
        if seconds <= left:
            left -= seconds
            chosen.append(part)
    return chosen


def find_no_device() -> str | None:
    """Return why there is no CUDA device, or None where there is one."""
    import torch  # noqa: PLC0415  after the environment is set

    if torch.cuda.is_available():
        return None
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (AssertionError, RuntimeError) as error:  # torch without CUDA asserts
        return " ".join(str(error).split(". ")[0].split())
    return "it sees none"


def read_origin(commit: str | None) -> dict[str, Any]:
    """Return the day and the commit. A machine that was sent the files alone has no git."""
    try:
        return {"date": read_date(), "commit": commit or read_commit()}
    except OSError:
        return {"date": read_date(), "commit": "unknown"}


def read_parts(values: argparse.Namespace) -> list[str]:
    """Return the parts to run."""
    if values.minutes is not None:
        return choose_parts(values.minutes)
    return list(PARTS) if values.part == "all" else [values.part]


def main(argv: list[str]) -> int:
    """Run the campaign. Return 1 if a check failed or a step did not run, 2 without a device."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--part", choices=(*PARTS, "all"), default="all", help="(default: %(default)s)")
    choice.add_argument("--minutes", type=float, help="run the newest parts that fit into so many minutes")
    parser.add_argument(
        "--out", type=Path, default=None, help="folder of the results (default: benchmarks/results/gpu)"
    )
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes on the CPU, kernels interpreted")
    parser.add_argument("--commit", help="what is measured, where git can't say")
    values = parser.parse_args(argv)
    if not (parts := read_parts(values)):
        parser.error(f"--minutes {values.minutes:g}: the shortest part takes {min(PARTS.values())} s")
    if values.dry_run:
        os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported, and at each launch
    elif (reason := find_no_device()) is not None:
        print(f"no CUDA device to measure ({reason}); --dry-run only shows that every step runs")
        return NO_DEVICE
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler's own talk
    origin = read_origin(values.commit)
    with contextlib.ExitStack() as stack:
        # The results of a dry run mean nothing: nobody is to find them.
        nowhere = stack.enter_context(tempfile.TemporaryDirectory()) if values.dry_run else RESULTS
        folder = values.out or Path(nowhere)
        folder.mkdir(parents=True, exist_ok=True)
        return 0 if run_parts(parts, folder, origin, is_dry_run=values.dry_run) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
