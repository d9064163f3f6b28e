"""What the latency alerts know of objectives while nobody tells them, or two tell different ones."""

from collections.abc import Iterable

import pytest

from millrace_operator.api.scaling_types import ObjectiveMetric
from tests.monitoring.chart import READS_RULES
from tests.monitoring.incidents import (
    SERVICE,
    Alert,
    Check,
    Phase,
    Series,
    count_steps,
    minutes_of_quiet,
    write_constant,
    write_latencies,
    write_objective,
    write_rest,
    write_series,
)

pytestmark = [pytest.mark.slow, READS_RULES]
TTFT = ObjectiveMetric.TIME_TO_FIRST_TOKEN
GOOD, BAD = {0.2: 60.0}, {8.0: 60.0}
MOST = Alert("LatencyMissedByMost", "page")
LEADERLESS = Alert("OperatorWithoutLeader", "page")
GONE = dict.fromkeys(
    ("leader_election_master_status", "millrace_desired_replicas", "millrace_ready_replicas")
)
LEADER = {**SERVICE, "name": "millrace-operator", "pod": "operator-0"}


def write_leader(steps: int) -> Series:
    return write_constant("leader_election_master_status", LEADER, 1, steps)


def end(series: Iterable[Series]) -> list[Series]:
    """As the series of a pod that is gone end."""
    return [{**one, "values": f"{one['values']} stale"} for one in series]


def pause(series: Iterable[Series], steps: int, again: int) -> list[Series]:
    """Series that end, are away for so many steps and are there again."""
    return [
        {**one, "values": f"{one['values']} stale _x{steps - 1} {one['values'].partition('x')[0]}x{again}"}
        for one in series
    ]


def write_service(*phases: Phase) -> list[Series]:
    """A service's requests, and all but the operator's series."""
    return [*write_latencies(TTFT, phases), *write_rest(count_steps(*phases), **GONE)]


def write_objectives(steps: int, target: float = 2.5) -> list[Series]:
    """A lax objective: of its budget too little can burn for the other pages."""
    return write_objective(TTFT, 80, target, steps)


def test_a_page_goes_on_for_hours_while_no_operator_is_scraped(pages: Check) -> None:
    known = 40 * 2
    series = [
        *write_service(Phase(30, GOOD), Phase(390, BAD)),
        *end([*write_objectives(known), write_leader(known)]),
    ]
    both = [MOST, LEADERLESS]
    pages(series, {39: [MOST], 41: [MOST], 45: both, 120: both, 390: both, 410: [LEADERLESS]})


def test_an_objective_that_is_deleted_is_forgotten_at_once(pages: Check) -> None:
    steps = 80 * 2
    series = [*write_service(Phase(30, GOOD), Phase(50, BAD)), write_leader(steps)]
    pages([*series, *end(write_objectives(40 * 2))], {39: [MOST], **minutes_of_quiet(41, 45, 79)})


def test_an_operator_that_begins_anew_and_knows_no_service_yet_ends_no_page(pages: Check) -> None:
    known = 40 * 2
    series = [
        *write_service(Phase(30, GOOD), Phase(50, BAD)),
        *pause([write_leader(known)], 3, 70),
        *pause(write_objectives(known), 5, 70),
    ]
    pages(series, {minute: [MOST] for minute in range(38, 60)})


def test_an_operator_that_begins_anew_with_another_target_ends_no_page(pages: Check) -> None:
    mixed, known, again = {0.2: 18.0, 8.0: 42.0}, 40 * 2, 35 * 2
    old, new = (write_objectives(steps, target) for steps, target in ((known, 5.0), (again, 2.5)))
    budget = pause([one for one in old if "budget" in one["series"]], 3, again)
    series = [
        *write_service(Phase(30, GOOD), Phase(50, mixed)),
        *pause([write_leader(known)], 3, again),
        *budget,
        *end(one for one in old if "edge" in one["series"]),
        *({**one, "values": f"_x{known + 3} {one['values']}"} for one in new if "edge" in one["series"]),
    ]
    pages(series, {minute: [MOST] for minute in range(38, 60)})


def test_of_a_changed_target_only_the_new_one_is_remembered(pages: Check) -> None:
    first, second = 40 * 2, 5 * 2
    old, new = (
        [one for one in write_objectives(steps, target) if "edge" in one["series"]]
        for steps, target in ((first, 2.5), (second, 10.0))
    )
    budget = [one for one in write_objectives(first + second) if "budget" in one["series"]]
    series = [
        *write_service(Phase(30, GOOD), Phase(50, BAD)),
        *end([*old, *budget, write_leader(first + second)]),
        *end({**one, "values": f"_x{first} {one['values']}"} for one in new),
    ]
    pages(series, {39: [MOST], 41: [], 44: [], 55: [LEADERLESS], 79: [LEADERLESS]})


def test_two_operators_that_tell_two_targets_hide_no_late_requests(pages: Check) -> None:
    mixed = {0.2: 18.0, 8.0: 42.0}
    steps = 60 * 2
    two = [
        one
        for number, target in enumerate((2.5, 5.0))
        for one in write_objectives(steps, target)
        if f"operator-{number}" in one["series"]
    ]
    series = [*write_service(Phase(30, GOOD), Phase(30, mixed)), *two, write_leader(steps)]
    pages(series, {29: [], 45: [MOST], 59: [MOST]})


def test_a_leader_that_ends_before_the_next_one_tells_ends_no_page(pages: Check) -> None:
    """The old one's pod goes while the other is not scraped."""
    steps, known = 60 * 2, 40 * 2
    old, new = (
        [one for one in write_objectives(known) if f"operator-{number}" in one["series"]]
        for number in range(2)
    )
    leaders = [
        *end([write_leader(known)]),
        write_series(
            "leader_election_master_status",
            {**LEADER, "pod": "operator-1"},
            ["_"] * (known + 4) + [1] * (steps - known - 4),
        ),
    ]
    series = [*write_service(Phase(30, GOOD), Phase(30, BAD)), *end(old), *pause(new, 4, 40), *leaders]
    pages(series, {minute: [MOST] for minute in range(38, 59)})
