"""Incidents as Prometheus would have stored them, and what promtool says of our rules over them.

A service is written as phases: how long, how many requests a minute end in each place. Series are cumulative,
a sample every 30 s; `MISSING` stands for a scrape that was lost.
"""

import json
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from millrace_gateway.report.metrics import Outcome
from millrace_operator.api.scaling_types import ObjectiveMetric
from millrace_operator.app.metrics import BOUNDS, find_bounds
from millrace_runtime import contract
from tests.monitoring.chart import CHART

RULES = CHART / "files" / "rules.yaml"
STEP_SECONDS = 30
MISSING = "_"
SERVICE = {"namespace": "shop", "service": "chat"}
REPLICA = "chat-0123456789-5d8f7c9b6d-x7k2p"
"""A pod as Kubernetes names those of a Deployment of ours."""
NAMES = {
    ObjectiveMetric.TIME_TO_FIRST_TOKEN: contract.METRIC_TTFT,
    ObjectiveMetric.TIME_PER_OUTPUT_TOKEN: contract.METRIC_TPOT,
    ObjectiveMetric.END_TO_END_LATENCY: contract.METRIC_E2E,
    ObjectiveMetric.QUEUE_TIME: contract.METRIC_QUEUE,
}


@dataclass(frozen=True)
class Phase:
    """So many minutes with so many requests a minute, by their latency in seconds."""

    minutes: int
    per_minute: Mapping[float, float] = field(default_factory=dict)
    is_scraped: bool = True


@dataclass(frozen=True)
class Alert:
    """An alert that fires, by what tells it from others of its name."""

    name: str
    severity: str
    window: str = ""

    @property
    def labels(self) -> str:
        """As promtool reads them."""
        window = f', window="{self.window}"' if self.window else ""
        return f'{{alertname="Millrace{self.name}", severity="{self.severity}"{window}}}'


Series = dict[str, str]
Firing = Mapping[int, Iterable[Alert]]
Check = Callable[[Sequence[Series], Firing], None]
WELL = {"leader_election_master_status": 1, "millrace_gateway_requests_in_flight": 0}
"""What speaks of no service, while all is well."""
CLUSTER_WIDE = (*WELL, "millrace_operator_gateways", "millrace_operator_gateways_silent")
NAMESPACE = re.compile(r'\bnamespace="(.+?)"')


@dataclass(frozen=True)
class Incident:
    """Series, and what fires over them, by minute."""

    series: Sequence[Series]
    firing: Firing
    severity: str = ".+"
    """A regular expression of those that are compared."""
    namespace: str = ".*"
    """The same of the alerts' namespaces."""

    @property
    def minutes(self) -> int:
        """How long it lasts."""
        return max(self.firing)

    @property
    def query(self) -> str:
        """Return what promtool asks for."""
        labels = f'alertstate="firing",severity=~"{self.severity}",namespace=~"{self.namespace}"'
        return f"count by (alertname, severity, window) (ALERTS{{{labels}}})"

    @property
    def may_have_others_beside_it(self) -> bool:
        """Whether all that is of no service is well until its last minute."""
        if any("exported_namespace" in one["series"] for one in self.series):
            return False
        steps = self.minutes * 60 // STEP_SECONDS
        wide = [one for one in self.series if one["series"].partition("{")[0] in CLUSTER_WIDE]
        lasting = [_count_lasting(one) for one in wide]
        return len(wide) == len(WELL) and all(count is not None and count > steps for count in lasting)

    def move(self, number: int) -> "Incident":
        """Return it in namespaces of its own. Alerts of no namespace are compared too."""
        moved = [
            {**one, "series": NAMESPACE.sub(rf'namespace="\1-{number}"', one["series"])}
            for one in self.series
        ]
        return replace(self, series=moved, namespace=f"(.+-{number})?")


def _count_lasting(series: Series) -> int | None:
    """Return how many samples a series has, or None where it does not say that all is well."""
    name = series["series"].partition("{")[0]
    found = re.fullmatch(rf"{WELL.get(name)}x(\d+)", series["values"])
    return int(found[1]) + 1 if found else None


def count_steps(*phases: Phase) -> int:
    return sum(phase.minutes for phase in phases) * 60 // STEP_SECONDS


def minutes_of_quiet(*minutes: int) -> dict[int, list[Alert]]:
    return {minute: [] for minute in minutes}


def write(
    *phases: Phase,
    percentile: int = 95,
    target: float = 2.5,
    metric: ObjectiveMetric = ObjectiveMetric.TIME_TO_FIRST_TOKEN,
) -> list[Series]:
    """A service with one objective; all else is well."""
    steps = count_steps(*phases)
    objective = write_objective(metric, percentile, target, steps)
    return [*write_latencies(metric, phases), *objective, *write_rest(steps)]


def write_series(name: str, labels: Mapping[str, str], values: Iterable[float | str]) -> Series:
    written = ",".join(f'{key}="{value}"' for key, value in labels.items())
    return {"series": f"{name}{{{written}}}", "values": " ".join(_compress(list(map(str, values))))}


def _compress(values: Sequence[str]) -> Iterable[str]:
    """Runs of one value in promtool's short form: a day of samples is 2880."""
    start = 0
    for index in range(1, len(values) + 1):
        if index == len(values) or values[index] != values[start]:
            count = index - start
            if values[start] == "inf":  # promtool reads no short form of it
                yield from ["Inf"] * count
            else:
                yield values[start] if count == 1 else f"{values[start]}x{count - (values[start] != MISSING)}"
            start = index


def write_latencies(
    metric: ObjectiveMetric,
    phases: Sequence[Phase],
    write_bound: Callable[[float], str] = repr,
    labels: Mapping[str, str] = {},
) -> list[Series]:
    """The buckets of one replica, under the labels that every scrape adds and others."""
    labels = {"namespace": SERVICE["namespace"], "pod": REPLICA, "model_name": "chat", **labels}
    bounds = [*BOUNDS[metric], float("inf")]
    return [
        write_series(
            f"{NAMES[metric]}_bucket",
            {**labels, "le": "+Inf" if bound == float("inf") else write_bound(bound)},
            _accumulate(phases, bound),
        )
        for bound in bounds
    ]


def _accumulate(phases: Sequence[Phase], bound: float) -> Iterable[float | str]:
    total = 0.0
    for phase in phases:
        rate = sum(count for seconds, count in phase.per_minute.items() if seconds <= bound)
        for _ in range(phase.minutes * 60 // STEP_SECONDS):
            total += rate * STEP_SECONDS / 60
            yield round(total, 6) if phase.is_scraped else MISSING


def write_objective(
    metric: ObjectiveMetric, percentile: int, target: float, steps: int, operators: int = 2
) -> list[Series]:
    """What each replica of the operator shows of an objective, for so many samples."""
    found = []
    for number in range(operators):
        labels = {
            **SERVICE,
            "metric": metric.value,
            "percentile": str(percentile),
            "pod": f"operator-{number}",
        }
        under, over = find_bounds(metric, target)
        edges = {"under": under, "over": over}
        found.append(
            write_constant("millrace_objective_error_budget_ratio", labels, 1 - percentile / 100, steps)
        )
        found += [
            write_constant(
                "millrace_objective_edge_seconds",
                {**labels, "side": side, "bucket": "+Inf" if edge == float("inf") else repr(edge)},
                edge,
                steps,
            )
            for side, edge in edges.items()
            if edge is not None
        ]
    return found


def write_constant(name: str, labels: Mapping[str, str], value: float, steps: int) -> Series:
    return write_series(name, labels, [round(value, 9)] * steps)


def write_rest(steps: int, **changed: float | None) -> list[Series]:
    """A leader, a gateway and a service below its maximum; `changed` metrics differ, None has no series."""
    values: dict[str, float | None] = {
        "leader_election_master_status": 1,
        "millrace_desired_replicas": 1,
        "millrace_ready_replicas": 1,
        "millrace_max_replicas": 4,
        "millrace_gateway_requests_in_flight": 0,
        **changed,
    }
    labels = {**SERVICE, "name": "millrace-operator", "pod": "pod-0"}
    return [write_constant(name, labels, value, steps) for name, value in values.items() if value is not None]


def write_gateway(phases: Sequence[tuple[int, Mapping[str, float]]]) -> list[Series]:
    """Requests a minute by outcome, in phases of minutes."""
    found = []
    for outcome in Outcome:
        name = contract.METRIC_GATEWAY_FINISHED
        plain = [Phase(minutes, {0.0: rates.get(outcome, 0.0)}) for minutes, rates in phases]
        found.append(
            write_series(name, {**SERVICE, "pod": "gateway-0", "outcome": outcome}, _accumulate(plain, 1.0))
        )
    return found


def check(promtool: Path, folder: Path, incidents: Sequence[Incident]) -> str:
    """Have promtool evaluate the rules over these incidents at once. Return what it says against them."""
    interval = f"{STEP_SECONDS}s"
    asked = [
        {
            "interval": interval,
            "input_series": [one for incident in incidents for one in incident.series],
            "promql_expr_test": [
                {
                    "expr": incident.query,
                    "eval_time": f"{minute}m",
                    "exp_samples": [{"labels": alert.labels, "value": 1} for alert in alerts],
                }
                for incident in incidents
                for minute, alerts in incident.firing.items()
            ],
        }
    ]
    path = folder / "test.json"
    path.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": interval, "tests": asked}))
    words = [str(promtool), "test", "rules", str(path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    return done.stdout + done.stderr if done.returncode else ""
