"""Runs the simulations, each on the same requests and replicas with the same seed, and shows progress."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TextIO

from millrace_kubectl.simulation.manifest import Manifest
from millrace_kubectl.simulation.policies import PolicyChoice, list_sweep
from millrace_kubectl.simulation.result import Measured, measure
from millrace_kubectl.simulation.traffic import Traffic
from millrace_operator.autoscaler.simulate.hardware import Hardware
from millrace_operator.autoscaler.simulate.load import Request
from millrace_operator.autoscaler.simulate.policies.clairvoyant import SHARES, foresee, foresee_shares
from millrace_operator.autoscaler.simulate.policies.contestants import CLAIRVOYANT, OURS, PEERS, build_ours
from millrace_operator.autoscaler.simulate.prometheus import Scraping
from millrace_operator.autoscaler.simulate.run import Run, Static
from millrace_operator.autoscaler.simulate.workloads import Workload

FIRST_SECONDS = 300.0
"""The initial count is the need of the first seconds."""
NEARLY_BEST = 0.005
"""A count is enough if its attainment is at most so much lower than with all replicas."""
Follow = Callable[[float], None]
"""Called with the virtual time, in seconds."""
CELLS = 30
CLEAR = "\r\x1b[K"


@dataclass
class Progress:
    """A bar over all simulations. It writes nothing where the stream is no terminal."""

    stream: TextIO
    total: int
    """Simulations."""
    seconds: float
    """The virtual time of each."""
    num_done: int = 0
    label: str = ""
    _shown: int = -1

    def begin(self, label: str) -> None:
        """Show the label of the next simulation."""
        self.label, self._shown = label, -1
        self._show(0.0)

    def end(self) -> None:
        """Count the simulation as done, and clear the line after the last one."""
        self.num_done += 1
        if self.num_done == self.total:
            self.close()

    def close(self) -> None:
        """Clear the line."""
        if self.stream.isatty():
            self.stream.write(CLEAR)
            self.stream.flush()

    def follow(self, at: float) -> None:
        """Show the virtual time, in seconds."""
        self._show(at / self.seconds)

    def _show(self, share: float) -> None:
        percent = int(100 * (self.num_done + min(share, 1.0)) / self.total)
        if percent == self._shown or not self.stream.isatty():
            return
        self._shown = percent
        bar = ("#" * (percent * CELLS // 100)).ljust(CELLS, ".")
        self.stream.write(f"{CLEAR}[{bar}] {percent:3d} %  {self.num_done + 1}/{self.total} {self.label}")
        self.stream.flush()


@dataclass(frozen=True)
class Replay:
    """A source of requests that exist already."""

    recorded: Sequence[Request]

    def requests(self, seed: int) -> Iterator[Request]:
        """Yield them. The seed was used when they were read or drawn."""
        del seed
        return iter(self.recorded)


@dataclass(frozen=True)
class Session:
    """The common part of all simulations."""

    manifest: Manifest
    traffic: Traffic
    hardware: Hardware
    scrape_seconds: float
    seed: int
    initial_replicas: int

    def run(self, choices: Sequence[PolicyChoice], progress: Progress) -> list[Measured]:
        """Simulate each choice."""
        return [self._measure(choice, progress) for choice in choices]

    def sweep(
        self, choices: Sequence[PolicyChoice], known: Sequence[Measured], progress: Progress
    ) -> list[Measured]:
        """Simulate every choice with every value of its knob, except the known ones."""
        done = {measured.choice: measured for measured in known}
        found = [done.get(choice) or self._measure(choice, progress) for choice in self.list_sweep(choices)]
        found += self._sweep_future(progress) if PolicyChoice(CLAIRVOYANT) in choices else []
        order = list(dict.fromkeys(each.choice.policy for each in found))
        return sorted(found, key=lambda each: (order.index(each.choice.policy), each.replica_hours))

    def list_sweep(self, choices: Sequence[PolicyChoice]) -> list[PolicyChoice]:
        """Return the choices of a sweep, without the clairvoyant plans."""
        return list_sweep(list(choices), self.manifest.min_replicas, self.manifest.max_replicas)

    def _measure(self, choice: PolicyChoice, progress: Progress) -> Measured:
        progress.begin(choice.label)
        measured = measure(choice, self._simulate(choice, progress.follow), self.traffic, self.manifest)
        progress.end()
        return measured

    def _simulate(self, choice: PolicyChoice, follow: Follow) -> Run:
        workload = build_workload(self.manifest, self.traffic, self.hardware, self.initial_replicas, follow)
        setting = workload.setting(self.seed, Scraping(self.scrape_seconds))
        if choice.policy == CLAIRVOYANT:
            return foresee(workload, self.seed)
        if choice.policy == OURS:
            return workload.play(setting, build_ours(workload))
        return PEERS[choice.policy].play(workload, choice.knob or 0.0, setting)

    def _sweep_future(self, progress: Progress) -> list[Measured]:
        workload = build_workload(
            self.manifest, self.traffic, self.hardware, self.initial_replicas, progress.follow
        )
        found = []
        for run in foresee_shares(workload, self.seed):
            progress.begin(CLAIRVOYANT)
            found.append(measure(PolicyChoice(CLAIRVOYANT), run, self.traffic, self.manifest))
            progress.end()
        return list({(each.attainment, each.replica_hours): each for each in found}.values())


def count_simulations(session: Session, choices: Sequence[PolicyChoice], *, with_sweep: bool) -> int:
    """Return the number of simulations."""
    if not with_sweep:
        return len(choices)
    more = [choice for choice in session.list_sweep(choices) if choice not in choices]
    return len(choices) + len(more) + len(SHARES) * (PolicyChoice(CLAIRVOYANT) in choices)


def build_workload(
    manifest: Manifest, traffic: Traffic, hardware: Hardware, initial: int, follow: Follow | None
) -> Workload:
    """Return the service with its load, as the simulator has them."""
    return Workload(
        name=manifest.name,
        source=Replay(traffic.requests),
        seconds=traffic.seconds,
        objectives=manifest.objectives,
        hardware=hardware,
        min_replicas=manifest.min_replicas,
        max_replicas=manifest.max_replicas,
        initial_replicas=initial,
        peak_at=0.0,
        on_tick=follow,
    )


def find_initial(manifest: Manifest, traffic: Traffic, hardware: Hardware, seed: int) -> int:
    """Return the smallest count that serves the first minutes nearly as well as `maxReplicas` would.

    The service was running before its trace began: no policy should begin with a queue or idle replicas. An
    objective that `maxReplicas` misses does not help to choose a count.
    """
    seconds = min(FIRST_SECONDS, traffic.seconds)
    first = [request for request in traffic.requests if request.at < seconds]
    beginning = replace(traffic, requests=first, seconds=seconds)
    workload = build_workload(manifest, beginning, hardware, 1, None)

    def play(count: int) -> Run:
        return workload.play(replace(workload.setting(seed), initial_replicas=count), Static(count))

    low, high = manifest.min_replicas, manifest.max_replicas
    best = play(high)
    reached = [one for one in manifest.objectives if best.attainment([one]) >= one.percentile / 100]
    objectives = reached or manifest.objectives
    enough = best.attainment(objectives) - NEARLY_BEST
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if play(middle).attainment(objectives) >= enough else (middle + 1, high)
    return low
