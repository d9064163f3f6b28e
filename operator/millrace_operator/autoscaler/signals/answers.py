"""Prometheus' answers for all services, by service and signal, with the gateways' reports. Pure."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from millrace_operator.autoscaler.signals.queries import LABEL_SIGNAL
from millrace_operator.autoscaler.signals.scrapes import DEFAULT_WINDOWS, Windows
from millrace_operator.kube.kinds import ServiceKey

ARRIVALS = ("arrivals", "recent_arrivals")
WAITING_AT_GATEWAYS = "gateway_waiting"
"""Requests that wait in gateways, which give replicas no more requests of clients with keys than they
compute."""
UNREPORTED = "not every gateway has reported for so long"
OWN_WARNING = "PromQL"
"""The beginning of warnings about a query itself. Others are Thanos' and remote stores': a part did not
answer."""
SUBJECT = ("namespace", "pod", LABEL_SIGNAL)
"""The labels of a sample's subject."""


class SignalError(Exception):
    """An answer cannot be used; the text is the reason."""


class PodKey(NamedTuple):
    """Names one pod in the cluster."""

    namespace: str
    name: str


class Sample(NamedTuple):
    """One series of an instant query."""

    labels: dict[str, str]
    value: float

    @property
    def pod(self) -> str:
        """Its pod; empty for a sample of a whole service."""
        return self.labels.get("pod", "")

    @property
    def source(self) -> str:
        """The source of its scrape: all labels but those of its subject."""
        others = sorted(self.labels.items() - {(name, self.labels.get(name)) for name in SUBJECT})
        return ",".join(f"{name}={value}" for name, value in others)


@dataclass(frozen=True)
class Reading:
    """The answers for all services."""

    at: float
    """In seconds since 1970."""
    windows: Windows = DEFAULT_WINDOWS
    series: Mapping[ServiceKey, Mapping[str, list[Sample]]] = field(default_factory=dict)
    """By service and signal; finite values only."""
    failure: str | None = None
    """Why there is no answer at all."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    """The signals whose own question has no answer, with the reason."""


def add_gateways(reading: Reading, found: Mapping[ServiceKey, Mapping[str, float]]) -> Reading:
    """Return the reading with the gateways' reports, which `found` has by service and signal."""
    series, names = dict(reading.series), {name for signals in found.values() for name in signals}
    unknown = {name: UNREPORTED for name in ARRIVALS if name not in names}
    for key, signals in ((key, signals) for key, signals in found.items() if signals):
        labels = {"namespace": key.namespace, "service": key.name}
        added = {name: [Sample({**labels, LABEL_SIGNAL: name}, value)] for name, value in signals.items()}
        series[key] = {**series.get(key, {}), **added}
    return replace(reading, series=series, unknown={**reading.unknown, **unknown})


def parse_samples(body: Any) -> list[Sample]:
    """Return the finite samples of an instant query's answer; raises SignalError if it is no answer."""
    if not isinstance(body, dict) or body.get("status") != "success":
        reason = body.get("error", "no reason given") if isinstance(body, dict) else "not a JSON object"
        raise SignalError(f"Prometheus refused the query: {reason}")
    check_whole(body)
    try:
        series = [
            Sample({name: str(text) for name, text in item["metric"].items()}, float(item["value"][1]))
            for item in body["data"]["result"]
        ]
    except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
        raise SignalError(f"Prometheus answered in an unknown shape: {error!r}") from error
    return [sample for sample in series if math.isfinite(sample.value)]


def check_whole(body: Mapping[str, Any]) -> None:
    """Refuse an answer that may lack a part of the series; raises SignalError."""
    if body.get("isPartial") is True:
        raise SignalError("Prometheus answered from a part of its stores only")
    warnings = body.get("warnings") or []
    if doubts := [str(text) for text in warnings if not str(text).startswith(OWN_WARNING)]:
        raise SignalError(f"Prometheus may not have answered from all its stores: {doubts[0]}")


def sort_samples(
    samples: Iterable[Sample], owners: Mapping[PodKey, ServiceKey]
) -> dict[ServiceKey, dict[str, list[Sample]]]:
    """Return the samples by service and signal, without samples of pods that have no owner."""
    found: dict[ServiceKey, dict[str, list[Sample]]] = {}
    for sample in samples:
        labels, namespace = sample.labels, sample.labels.get("namespace", "")
        key = PodKey(namespace, sample.pod)
        owner = owners.get(key) if sample.pod else ServiceKey(namespace, labels.get("service", ""))
        if owner is not None:
            found.setdefault(owner, {}).setdefault(labels.get(LABEL_SIGNAL, ""), []).append(sample)
    return found
