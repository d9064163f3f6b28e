"""The rules find services and bounds however a scrape labels the series and a store writes `le`."""

from dataclasses import replace
from itertools import chain

import pytest
import yaml

from millrace_operator.api.scaling_types import ObjectiveMetric
from millrace_operator.autoscaler.signals.queries import REPLICA_NAME
from tests.monitoring.chart import READS_RULES
from tests.monitoring.incidents import (
    RULES,
    Alert,
    Check,
    Phase,
    Series,
    count_steps,
    minutes_of_quiet,
    write_latencies,
    write_objective,
    write_rest,
)

pytestmark = [pytest.mark.slow, READS_RULES]
TTFT = ObjectiveMetric.TIME_TO_FIRST_TOKEN
MOST = Alert("LatencyMissedByMost", "page")
INCIDENT = (Phase(30, {0.2: 60.0}), Phase(30, {8.0: 60.0}))
BEFORE = (*INCIDENT[:1], Phase(15, {8.0: 60.0}), Phase(15, {8.0: 60.0}, is_scraped=False))
AFTER = (*(replace(phase, is_scraped=not phase.is_scraped) for phase in BEFORE),)
"""The incident, until something changes within it and from then on."""
PAGED = {29: [], **{minute: [MOST] for minute in range(40, 59)}}
SOME_SERVICE = {"service": "millrace-replicas"}
"""The label as a ServiceMonitor adds it: a Kubernetes Service's name."""


def write_others(*phases: Phase) -> list[Series]:
    """The objective, and all else."""
    steps = count_steps(*phases)
    return [*write_objective(TTFT, 80, 5.0, steps), *write_rest(steps)]


def change(before: list[Series], after: list[Series]) -> list[Series]:
    """Series of which those of another name are there from then on. What both have goes on."""
    first, second, whole = (
        {one["series"]: one for one in found} for found in (before, after, write_latencies(TTFT, INCIDENT))
    )
    return list((first | second | {name: whole[name] for name in first.keys() & second.keys()}).values())


def write_integers(bound: float) -> str:
    """1.0 as 1, as some stores have it."""
    return f"{bound:.9f}".rstrip("0").rstrip(".")


@pytest.mark.parametrize("labels", [{}, SOME_SERVICE])
def test_a_scrape_need_not_name_the_service(pages: Check, labels: dict[str, str]) -> None:
    pages([*write_latencies(TTFT, INCIDENT, labels=labels), *write_others(*INCIDENT)], PAGED)


def test_pods_of_others_with_the_same_metrics_page_nobody(pages: Check) -> None:
    foreign = (
        write_latencies(TTFT, INCIDENT, labels={"pod": pod, "service": "chat"})
        for pod in ("vllm-0", "chat-7d9f88c4d5-abcde", "other-0123456789-5d8f7c9b6d-x7k2p")
    )
    series = [*chain.from_iterable(foreign), *write_others(*INCIDENT)]
    pages(series, minutes_of_quiet(40, 59))
    good = write_latencies(TTFT, [Phase(60, {0.2: 60.0})])
    pages([*good, *series], minutes_of_quiet(40, 59))


def test_a_scrape_that_begins_to_name_the_service_ends_no_page(pages: Check) -> None:
    series = change(write_latencies(TTFT, BEFORE), write_latencies(TTFT, AFTER, labels=SOME_SERVICE))
    pages([*series, *write_others(*INCIDENT)], PAGED)


def test_a_store_may_write_bounds_as_integers(pages: Check) -> None:
    pages([*write_latencies(TTFT, INCIDENT, write_integers), *write_others(*INCIDENT)], PAGED)
    good = [Phase(60, {0.2: 60.0})]
    pages([*write_latencies(TTFT, good, write_integers), *write_others(*INCIDENT)], minutes_of_quiet(59))


def test_a_store_that_writes_bounds_anew_ends_no_page(pages: Check) -> None:
    series = change(write_latencies(TTFT, BEFORE, write_integers), write_latencies(TTFT, AFTER))
    pages([*series, *write_others(*INCIDENT)], PAGED)


def test_the_rules_know_a_replica_by_its_pods_name_as_the_autoscaler_does() -> None:
    """Its tests show that the pattern is exact, whatever the service's name."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    texts = [rule["expr"] for group in groups for rule in group["rules"]]
    num_selectors = sum(text.count("vllm:") for text in texts)
    assert num_selectors == len(ObjectiveMetric)
    assert sum(text.count(f'"pod", "{REPLICA_NAME}" )') for text in texts) == num_selectors
