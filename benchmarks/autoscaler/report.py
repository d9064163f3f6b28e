"""What the simulations say together: the table, and the figures of the JSON line."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.autoscaler.choice import JUDGED, WEEK, Knob, attain, average
from benchmarks.autoscaler.jobs import Job, Result
from millrace_operator.autoscaler.simulate.policies.contestants import (
    CLAIRVOYANT,
    HPA_QUEUE,
    OURS,
    PEERS,
    STATIC,
)

SHORTEST, LONGEST = 30.0, 300.0
"""Cold starts beside the workloads' own of 100 and 120 s."""
SLOW_SCRAPE = 30.0
VARIATIONS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "cold 30 s": {"cold_start": SHORTEST},
    "cold 300 s": {"cold_start": LONGEST},
    "scrape 30 s": {"scrape": SLOW_SCRAPE},
    "both 30 s": {"scrape": SLOW_SCRAPE, "cold_start": SHORTEST},
    "scrape, 300 s": {"scrape": SLOW_SCRAPE, "cold_start": LONGEST},
    "outage": {"fault": "outage"},
    "half lost": {"fault": "loss"},
}
"""How each workload is run."""
DAYS = ("W4", "W5")
BRIEF = ("W1", "W2")
"""On these, which take seconds each, peers are run with all variations too."""


@dataclass(frozen=True)
class Outcome:
    """All that was simulated, and the knobs that were chosen."""

    names: tuple[str, ...]
    """The workloads."""
    results: Mapping[Job, Result]
    knobs: Mapping[str, Knob]
    """Of each peer, one for all workloads."""
    tuned: Mapping[tuple[str, str], Knob]
    """Of each peer and workload."""

    @property
    def judged(self) -> tuple[str, ...]:
        """Return the workloads on which one setting has to do."""
        return tuple(name for name in self.names if name in JUDGED)

    def of(self, policy: str, name: str, **other: Any) -> Result:
        """Return how a policy did, with the knob that was chosen for all workloads."""
        return self.results[self._find_job(policy, name, **other)]

    def find(self, policy: str, name: str) -> Result | None:
        """Return the same; None where it was not run."""
        return self.results.get(self._find_job(policy, name))

    def _find_job(self, policy: str, name: str, **other: Any) -> Job:
        knob = self.knobs[policy].value if policy in self.knobs else 0.0
        return Job(name, policy, knob, **other)

    def all_of(self, policy: str) -> list[Result]:
        """Return how a policy did on the judged workloads."""
        return [self.of(policy, name) for name in self.judged]

    def of_tuned(self, policy: str, name: str) -> Result:
        """Return how a policy did with the knob that was chosen for the workload."""
        return self.results[Job(name, policy, self.tuned[policy, name].value)]


def list_reports(
    names: Sequence[str], knobs: Mapping[str, Knob], tuned: Mapping[tuple[str, str], Knob]
) -> list[Job]:
    """Return the jobs that are reported, after tuning. W3 and the week are run as they are only."""
    chosen = {OURS: 0.0} | {policy: knob.value for policy, knob in knobs.items()}
    jobs = [Job(name, CLAIRVOYANT) for name in names if name in JUDGED]
    for policy, value in chosen.items():
        for name in names:
            if name == WEEK and policy not in (OURS, STATIC):
                continue
            is_varied = name in (JUDGED if policy == OURS else BRIEF)
            variations = VARIATIONS.values() if is_varied else [{}]
            jobs += [Job(name, policy, value, **other) for other in variations]
    return jobs + [Job(name, policy, knob.value) for (policy, name), knob in tuned.items()]


def summarise(outcome: Outcome) -> dict[str, Any]:
    """Return the figures. A figure whose workloads were not run is None."""
    figures: dict[str, Any] = {f"attainment_w{number}": None for number in range(1, 7)}
    for name in outcome.names:
        figures[f"attainment_{name.lower()}"] = round(outcome.of(OURS, name).attainment, 4)
    figures |= _compare(outcome)
    w1, days = "W1" in outcome.names, [name for name in DAYS if name in outcome.names]
    figures["w1_average_replicas"] = round(outcome.of(OURS, "W1").average_replicas, 2) if w1 else None
    figures["reversals_per_day"] = (
        round(max(_reversals_a_day(outcome.of(OURS, name)) for name in days), 1) if days else None
    )
    return figures | _endure(outcome)


def _compare(outcome: Outcome) -> dict[str, Any]:
    ours = average(outcome.all_of(OURS))
    good = {peer: average(outcome.all_of(peer)) for peer, knob in outcome.knobs.items() if knob.is_good}
    best = min(good, key=good.__getitem__, default=None)
    return {
        "best_peer": best,
        "replica_hours_over_best_peer": round(ours / good[best], 3) if best else None,
        "replica_hours_over_hpa_queue": round(ours / average(outcome.all_of(HPA_QUEUE)), 3),
        "hpa_queue_reaches_the_bar": outcome.knobs[HPA_QUEUE].is_good,
        "replica_hours_over_clairvoyant": round(ours / average(outcome.all_of(CLAIRVOYANT)), 3),
        "worst_over_tuned_peer": _find_worst(outcome),
    }


def _find_worst(outcome: Outcome) -> float | None:
    """Return ours over the best of the peers that were tuned for a workload, where that is worst."""
    ratios = []
    for name in outcome.judged:
        good = [
            outcome.of_tuned(policy, tuned_name).average_replicas
            for (policy, tuned_name), knob in outcome.tuned.items()
            if tuned_name == name and knob.is_good
        ]
        if good:
            ratios.append(outcome.of(OURS, name).average_replicas / min(good))
    return round(max(ratios), 3) if ratios else None


def _endure(outcome: Outcome) -> dict[str, Any]:
    def lose(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
        losses = [
            outcome.of(OURS, name, **one).attainment - outcome.of(OURS, name, **other).attainment
            for name in outcome.judged
        ]
        return round(max(losses), 4)

    ours = {job: result for job, result in outcome.results.items() if job.policy == OURS}
    return {
        "attainment_lost_cold_start": lose({"cold_start": SHORTEST}, {"cold_start": LONGEST}),
        "attainment_lost_scrape": lose({}, {"scrape": SLOW_SCRAPE}),
        "scale_downs_in_faults": sum(result.num_downs_at_peak for job, result in ours.items() if job.fault),
        "killed_requests": sum(result.num_unanswered for result in ours.values()),
        "refused_requests": sum(result.num_refused for result in ours.values()),
    }


def _reversals_a_day(result: Result) -> float:
    return result.reversals / result.seconds * 86_400


def render(outcome: Outcome) -> list[str]:
    """Return the table: of each policy the share in time and the replicas, workload by workload."""
    header = f"{'':18} {'knob':>17} {'all':>13} " + " ".join(f"{name:>13}" for name in outcome.names)
    rows = [header, *[_render_row(outcome, policy) for policy in (OURS, CLAIRVOYANT, *PEERS)]]
    return [*rows, "Each with the share of requests in time, and the replicas on average."]


def _render_row(outcome: Outcome, policy: str) -> str:
    judged = outcome.all_of(policy)
    cells = [_render_cell(attain(judged), average(judged))]
    found = [outcome.find(policy, name) for name in outcome.names]
    cells += [_render_result(result) if result else "" for result in found]
    return f"{policy:18} {_render_knob(outcome, policy):>17} " + " ".join(f"{cell:>13}" for cell in cells)


def _render_knob(outcome: Outcome, policy: str) -> str:
    if policy not in outcome.knobs:
        return ""
    knob = outcome.knobs[policy]
    text = f"{PEERS[policy].knob} {knob.value:g}"
    return text if knob.is_good else f"never, {text}"


def _render_result(result: Result) -> str:
    return _render_cell(result.attainment, result.average_replicas)


def _render_cell(share: float, replicas: float) -> str:
    return f"{100 * share:6.2f}% {replicas:5.2f}"


def render_variations(outcome: Outcome) -> list[str]:
    """Return how each policy bears other cold starts, slow scrapes and faults: its worst workload."""
    brief = [name for name in outcome.judged if name in BRIEF]
    lines = [f"{'':18} " + " ".join(f"{name:>13}" for name in VARIATIONS)]
    if brief != list(outcome.judged):
        lines.append(_render_varied(outcome, OURS, outcome.judged, f"{OURS}, all"))
    if brief:
        lines += [_render_varied(outcome, policy, brief, policy) for policy in (OURS, *PEERS)]
    return [
        *lines,
        "Each with the share in time on the worst workload, and the replicas on average.",
        f"Where a row does not say all, on {' and '.join(brief) or 'no other'}.",
    ]


def _render_varied(outcome: Outcome, policy: str, names: Sequence[str], title: str) -> str:
    cells = []
    for other in VARIATIONS.values():
        varied = [outcome.of(policy, name, **other) for name in names]
        cells.append(_render_cell(attain(varied), average(varied)))
    return f"{title:18} " + " ".join(f"{cell:>13}" for cell in cells)


def describe_runs(outcome: Outcome) -> list[dict[str, Any]]:
    """Return every run that is compared, for the JSON line."""
    return [
        {
            "workload": job.workload,
            "policy": job.policy,
            "knob": job.knob,
            "cold_start": job.cold_start,
            "scrape": job.scrape,
            "fault": job.fault,
            "attainment": round(result.attainment, 4),
            "average_replicas": round(result.average_replicas, 3),
            "reversals": result.reversals,
            "scale_downs_at_peak": result.num_downs_at_peak,
        }
        for job, result in outcome.results.items()
    ]


def render_sweeps(tuning: Mapping[Job, Result]) -> list[str]:
    """Return what each value of each knob gave on the requests for tuning."""
    names = sorted({job.workload for job in tuning})
    lines = [f"{'sweep':36} " + " ".join(f"{name:>13}" for name in names)]
    for policy, value in sorted({(job.policy, job.knob) for job in tuning}):
        found = [tuning.get(Job(name, policy, value, "tune")) for name in names]
        cells = [_render_result(result) if result else " " * 13 for result in found]
        lines.append(f"{policy:18} {PEERS[policy].knob} {value:g}".ljust(36) + " " + " ".join(cells))
    return lines


def flatten_sweeps(tuning: Mapping[Job, Result]) -> list[dict[str, Any]]:
    """Return the sweeps for the JSON line."""
    return [
        {
            "workload": job.workload,
            "policy": job.policy,
            "knob": job.knob,
            "attainment": round(result.attainment, 4),
            "average_replicas": round(result.average_replicas, 3),
        }
        for job, result in tuning.items()
    ]
