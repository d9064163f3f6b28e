"""`python -m benchmarks.autoscaler.speed`: how fast simulator and decisions are; a table, one JSON line.

Half an hour at ten requests a second with the replicas and lengths of W1, on one CPU. Seconds are CPU time of
this process. A decision's time is the median, and there are eight replicas when it decides.
"""

import argparse
import statistics
import sys
import time
from dataclasses import dataclass, field, replace

from benchmarks.record import add_output, publish, read_commit, read_date
from benchmarks.runtime.machine import describe_machine
from millrace_operator.autoscaler.signals.observation import Signals
from millrace_operator.autoscaler.signals.scrapes import Windows
from millrace_operator.autoscaler.simulate.policies.contestants import build_ours
from millrace_operator.autoscaler.simulate.run import Choice, Scaler, Static
from millrace_operator.autoscaler.simulate.workloads import Ramp, Workload, ramp

RATE, SECONDS, REPLICAS, SEED = 10.0, 1800.0, 8, 2


@dataclass
class Timed:
    """A scaler, and how long each of its decisions took."""

    scaler: Scaler
    seconds: list[float] = field(default_factory=list)

    @property
    def tick_seconds(self) -> float:
        """The scaler's."""
        return self.scaler.tick_seconds

    @property
    def windows(self) -> Windows:
        """The scaler's."""
        return self.scaler.windows

    def choose(self, signals: Signals, now: float) -> Choice:
        """Decide, and note how long that took."""
        begin = time.process_time()
        choice = self.scaler.choose(signals, now)
        self.seconds.append(time.process_time() - begin)
        return choice


def build_workload() -> Workload:
    """Return W1 at a constant rate."""
    source = ramp().source
    assert isinstance(source, Ramp)
    steady = replace(source, rates=(RATE,), lasting=(SECONDS,))
    return replace(ramp(), source=steady, seconds=SECONDS, initial_replicas=REPLICAS)


def measure(workload: Workload, scaler: Scaler) -> tuple[float, list[float]]:
    """Return how many times faster than real time it went, and each decision's seconds."""
    timed, begin = Timed(scaler), time.process_time()
    workload.play(workload.setting(SEED), timed)
    return SECONDS / (time.process_time() - begin), timed.seconds


def main(argv: list[str]) -> int:
    """Measure, print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.autoscaler.speed", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--runs", type=int, default=3, help="of each; the median counts")
    add_output(parser)
    arguments = parser.parse_args(argv)
    if arguments.runs < 1:
        parser.error(f"--runs {arguments.runs}: write 1 or more")
    workload, ours, static, decisions = build_workload(), [], [], []
    for _ in range(arguments.runs):
        times, seconds = measure(workload, build_ours(workload))
        ours.append(times)
        decisions += seconds
        static.append(measure(workload, Static(REPLICAS, tick_seconds=2.0))[0])
    figures = {
        "times_real_time": round(statistics.median(ours)),
        "times_real_time_static": round(statistics.median(static)),
        "decide_microseconds": round(1e6 * statistics.median(decisions)),
    }
    print("\n".join(f"{name:24} {value:>6}" for name, value in figures.items()))
    origin = {"date": read_date(), "commit": read_commit(), "machine": describe_machine()}
    publish({"benchmark": "autoscaler-speed", **origin, "runs": arguments.runs, **figures}, arguments.output)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
