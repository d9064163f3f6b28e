"""`python -m benchmarks.simulation`: a simulated replica beside a real one; a table, then one JSON line.

Starts `millrace serve` with a model of 135 million random weights, or another one. From its step histograms,
under some fixed batches, it fits the simulator's `Hardware`. Then it sends Poisson loads over HTTP, and
simulates one replica that gets requests at the very times at which these left. It compares P95 of the time to
first token and of the time per output token.

It assumes:

- The machine does nothing else. Clients run on the same cores, and their work slows steps down.
- Steps follow each other at once. With the small model that is shipped they take a millisecond, and what HTTP
  needs for each token is as much, so its replica is full before its steps are. `--fit periods` counts the
  time from step to step instead, as clients see it under the fixed batches. The last line but one of the text
  says how much longer that is.
- What a request costs beside steps (HTTP, tokenising, the first token's way back) is the same for each. It is
  measured with requests alone, and added to the simulated time to first token.
- All requests of a load have the same lengths, and the replica is warm. There is no gateway.
- Steps vary as `Hardware.noise` says by default, and there are no stalls: neither is measured.
"""

import argparse
import math
import statistics
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

from benchmarks.record import add_output, publish, read_commit, read_date
from benchmarks.runtime.errors import EngineError
from benchmarks.runtime.machine import describe_machine
from benchmarks.runtime.models.checkpoint import write_model
from benchmarks.runtime.models.shapes import SMALL
from benchmarks.runtime.process import ended_by_signals
from benchmarks.runtime.progress import report
from benchmarks.runtime.workload import Case, Figure
from benchmarks.simulation.fit import Point, Shape, Tail, find_misfit, find_saturation, fit_hardware, simulate
from benchmarks.simulation.replica import MAX_BATCHED_TOKENS, MAX_SEQUENCES, Replica, read_tail, start_replica
from millrace_operator.autoscaler.simulate.hardware import Hardware

LOADS = (0.3, 0.6, 0.85)
"""Of what the fitted replica can carry at most."""
AIM_PERCENT = 10.0
LEAST_SECONDS = 5.0
DECODING = tuple(Case(f"{n} at once", Figure.OUTPUT, n, 16, 192) for n in (1, 2, 4, 8, 12, 16))
LONG = tuple(Case(f"{n} long", Figure.OUTPUT, n, 384, 96) for n in (4, 16))
PREFILLING = tuple(Case(f"prompt of {n}", Figure.PREFILL, 1, n, 1) for n in (32, 64, 128, 256, 448))
REPEATED = 10
"""Times that a prompt alone is sent: it takes a single step."""
ALONE = Case("alone", Figure.PREFILL, 1, 16, 1)
LIMITS = Hardware(
    max_sequences=MAX_SEQUENCES,
    max_batched_tokens=MAX_BATCHED_TOKENS,
    unevenness=0.0,
    stalls_per_hour=0.0,
)
"""The replica's, and what is not measured."""
SHAPES = (Shape(32, 128), Shape(256, 64))


class Row(NamedTuple):
    """One load, real and simulated."""

    shape: Shape
    load: float
    rate: float
    num_requests: int
    real: Tail
    simulated: Tail

    @property
    def errors(self) -> Tail:
        """By how many percent the simulated ones are larger."""
        pairs = zip(self.simulated, self.real, strict=True)
        return Tail(*(100 * (simulated / real - 1) for simulated, real in pairs))


def compare(
    replica: Replica, hardware: Hardware, front_seconds: float, loads: Sequence[float], seconds: float
) -> list[Row]:
    """Return every load, real and simulated. Raises EngineError."""
    rows = []
    for shape in SHAPES:
        for load in loads:
            rate = load * find_saturation(hardware, shape)
            streams = replica.send(shape, rate, seconds)
            simulated = simulate(hardware, shape, [stream.sent for stream in streams], front_seconds)
            rows.append(Row(shape, load, rate, len(streams), read_tail(streams), simulated))
            report(f"{shape.prompt_tokens} + {shape.generation_tokens} at {load:g}: {len(streams)} requests")
    return rows


def print_table(rows: Iterable[Row]) -> None:
    """Print P95 in milliseconds, real and simulated, and the error of the simulated one."""
    print(f"{'prompt + answer':>16}{'load':>6}{'requests/s':>12}", end="")
    print(f"{'TTFT real':>12}{'simulated':>11}{'off':>8}{'TPOT real':>12}{'simulated':>11}{'off':>8}")
    for row in rows:
        lengths = f"{row.shape.prompt_tokens} + {row.shape.generation_tokens}"
        print(f"{lengths:>16}{row.load:6.2f}{row.rate:12.2f}", end="")
        for real, simulated, error in zip(row.real, row.simulated, row.errors, strict=True):
            print(f"{1000 * real:12.2f}{1000 * simulated:11.2f}{error:+7.1f}%", end="")
        print()


def describe(row: Row) -> dict[str, object]:
    """Return a row as the JSON line has it."""
    return {
        "prompt_tokens": row.shape.prompt_tokens,
        "generation_tokens": row.shape.generation_tokens,
        "load": row.load,
        "rate": round(row.rate, 3),
        "requests": row.num_requests,
        "real_p95_seconds": row.real._asdict(),
        "simulated_p95_seconds": row.simulated._asdict(),
        "error_percent": {name: round(error, 2) for name, error in row.errors._asdict().items()},
    }


def measure_points(replica: Replica) -> list[Point]:
    """Return the step times of every fixed batch, after one round that warms up. Raises EngineError."""
    for case in (*DECODING, *LONG):
        replica.complete(case.shorten(), "warm")
    points = [replica.measure_steps(case) for case in (*DECODING, *LONG)]
    return points + [replica.measure_steps(case, REPEATED) for case in PREFILLING]


def measure_front(replica: Replica, hardware: Hardware) -> float:
    """Return what a request alone costs beside its step, in seconds. Raises EngineError."""
    alone = [replica.complete(ALONE, str(number))[0] for number in range(3 * REPEATED)]
    waits = [completion.first_token - completion.sent for completion in alone]
    return max(statistics.median(waits) - hardware.step_seconds(ALONE.num_prompt_tokens, 0), 0.0)


def find_model(model: Path | None, folder: str) -> Path:
    """Return the model to serve: one that is written into the folder where none is named."""
    return model or write_model(Path(folder) / "model", SMALL)


def measure(model: Path | None, fit: str, loads: Sequence[float], seconds: float) -> dict[str, object]:
    """Fit, send, simulate and print. Raises EngineError."""
    with tempfile.TemporaryDirectory() as name, start_replica(find_model(model, name), Path(name)) as replica:
        points = measure_points(replica)
        wanted = [point._replace(seconds=point.period_seconds) for point in points]
        fitted = wanted if fit == "periods" else points
        hardware = fit_hardware(fitted, replace(LIMITS, kv_tokens=replica.read_kv_tokens()))
        front = measure_front(replica, hardware)
        rows = compare(replica, hardware, front, loads, seconds)
    print_table(rows)
    longer = statistics.median(point.period_seconds / point.seconds for point in points[: len(DECODING)])
    worst = max(abs(error) for row in rows for error in row.errors)
    print(f"While decoding it is {100 * (longer - 1):.0f} % longer from step to step than a step takes.")
    print(f"At worst {worst:.1f} % off, fitted to {fit}; the aim is {AIM_PERCENT:g} %.")
    return {
        "fit": fit,
        "worst_error_percent": round(worst, 2),
        "misfit_percent": round(100 * find_misfit(hardware, fitted), 2),
        "period_over_step": round(longer, 3),
        "front_seconds": front,
        "hardware": asdict(hardware),
        "rows": [describe(row) for row in rows],
    }


def read_loads(text: str) -> tuple[float, ...]:
    """Read the loads as they are written on the command line."""
    try:
        loads = tuple(float(part) for part in text.split(","))
    except ValueError:
        loads = (math.nan,)
    if not all(0 < load < 1 for load in loads):
        raise argparse.ArgumentTypeError(f"{text}: write shares between 0 and 1, such as 0.3,0.6,0.85")
    return loads


def read_model(text: str) -> Path:
    """Read a model's folder, as `millrace serve` takes it."""
    if not (Path(text) / "tokenizer.json").is_file():
        raise argparse.ArgumentTypeError(f"{text} has no tokenizer.json: write a model's folder")
    return Path(text)


def read_seconds(text: str) -> float:
    """Read how long a load lasts."""
    if (seconds := float(text)) < LEAST_SECONDS:
        raise argparse.ArgumentTypeError(f"{text} s tell nothing of a P95: write {LEAST_SECONDS:g} or more")
    return seconds


def main(argv: list[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.simulation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=read_seconds, default=120.0, help="of a load (default: 120)")
    parser.add_argument("--loads", type=read_loads, default=LOADS, help="shares (default: 0.3,0.6,0.85)")
    parser.add_argument("--model", type=read_model, help="its folder (default: one that is written)")
    parser.add_argument("--fit", choices=("steps", "periods"), default="steps", help="(default: steps)")
    add_output(parser)
    arguments = parser.parse_args(argv)
    try:
        with ended_by_signals():
            result = measure(arguments.model, arguments.fit, arguments.loads, arguments.seconds)
    except EngineError as error:
        print(error, file=sys.stderr)
        return 1
    machine = {"date": read_date(), "commit": read_commit(), "machine": describe_machine()}
    publish({**machine, "seconds": arguments.seconds, **result}, arguments.output)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
