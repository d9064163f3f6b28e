"""The chart's rules over whole incidents, evaluated by the real promtool."""

import subprocess
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path

import pytest
import yaml

from millrace_operator.api.scaling_types import ObjectiveMetric
from tests.monitoring.chart import OPERATOR_API, READS_RULES, ROOT, render
from tests.monitoring.incidents import (
    REPLICA,
    RULES,
    SERVICE,
    STEP_SECONDS,
    Alert,
    Check,
    Phase,
    Series,
    minutes_of_quiet,
    write,
    write_constant,
    write_gateway,
    write_latencies,
    write_objective,
    write_rest,
    write_series,
)

pytestmark = [pytest.mark.slow, READS_RULES]
TTFT, TPOT = ObjectiveMetric.TIME_TO_FIRST_TOKEN, ObjectiveMetric.TIME_PER_OUTPUT_TOKEN
WHOLE, QUEUE = ObjectiveMetric.END_TO_END_LATENCY, ObjectiveMetric.QUEUE_TIME
GOOD, BAD = {0.2: 60.0}, {8.0: 60.0}
MOST = Alert("LatencyMissedByMost", "page")
FAST = Alert("LatencyBurnsFast", "page", "1h")
FASTER_THAN_6 = Alert("LatencyBurnsFast", "page", "6h")
SLOW_DAY, SLOW_DAYS = (Alert("LatencyBurnsSlowly", "ticket", window) for window in ("1d", "3d"))
DOUBT = Alert("LatencyInDoubt", "info")


def test_the_file_and_what_helm_renders_of_it_are_rules_without_a_fault(
    programs: Mapping[str, Path], tmp_path: Path
) -> None:
    rendered = tmp_path / "rules.yaml"
    manifests = render(programs["helm"], *OPERATOR_API)
    rendered.write_text(yaml.safe_dump(manifests[("PrometheusRule", "millrace")]["spec"]))
    for path in (RULES, rendered):
        words = [str(programs["promtool"]), "check", "rules", "--lint=all", "--lint-fatal", str(path)]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("metric", "target"), [(TTFT, 2.5), (TPOT, 1.0), (WHOLE, 2.5), (QUEUE, 2.5)])
def test_when_most_requests_miss_somebody_is_paged_within_minutes(
    pages: Check, metric: ObjectiveMetric, target: float
) -> None:
    series = write(Phase(120, GOOD), Phase(30, BAD), Phase(20, GOOD), metric=metric, target=target)
    pages(series, {**minutes_of_quiet(60, 120, 122), 127: [MOST], 145: [MOST], 158: []})


def test_a_third_of_a_strict_objective_s_requests_is_a_page_within_the_hour(pages: Check) -> None:
    third = {0.2: 40.0, 8.0: 20.0}
    series = write(Phase(120, GOOD), Phase(60, third), Phase(30, GOOD), percentile=99)
    pages(series, {**minutes_of_quiet(119, 140), 155: [FAST, FASTER_THAN_6], 170: [FAST, FASTER_THAN_6]})


def test_a_slow_burn_is_a_ticket_and_no_page(over: Check) -> None:
    """A twelfth misses what a twentieth may miss: 1.7 times the budget."""
    over(
        write(Phase(300, {0.2: 55.0, 8.0: 5.0})),
        {120: [SLOW_DAYS], 290: [SLOW_DAYS]},
    )


def test_a_faster_burn_is_two_tickets_and_no_page(over: Check) -> None:
    over(write(Phase(180, {0.2: 48.0, 8.0: 12.0})), {170: [SLOW_DAY, SLOW_DAYS]})


def test_a_service_that_just_keeps_its_objective_is_left_alone(over: Check) -> None:
    over(write(Phase(300, {0.2: 57.6, 8.0: 2.4})), minutes_of_quiet(60, 120, 290))


def test_a_quiet_night_alerts_nobody(over: Check) -> None:
    over(write(Phase(60, GOOD), Phase(300)), minutes_of_quiet(60, 65, 90, 350))


def test_few_requests_page_nobody(over: Check) -> None:
    """Five an hour, all of them late: of so few a percentile says nothing."""
    over(write(Phase(180, {8.0: 5 / 60})), minutes_of_quiet(60, 100))


EVERY_FIVE_MINUTES = (Phase(1, {8.0: 1.0}), Phase(4))
"""Twelve late requests an hour."""


def test_a_lax_objective_of_few_requests_pages_when_all_are_late(pages: Check) -> None:
    """A fifth may miss: all is five times as much, and the other pages begin at six."""
    series = write(Phase(30, GOOD), *EVERY_FIVE_MINUTES * 24, percentile=80)
    pages(series, {**minutes_of_quiet(29, 40, 70), **{minute: [MOST] for minute in range(90, 150, 7)}})


def test_a_burst_within_the_hour_and_one_late_request_now_page_nobody(pages: Check) -> None:
    burst, one = Phase(2, {8.0: 20.0}), Phase(1, {8.0: 1.0})
    series = write(Phase(30, GOOD), burst, Phase(30), one, Phase(20), percentile=80)
    pages(series, minutes_of_quiet(29, 50, *range(62, 80)))


def test_a_service_deleted_in_an_incident_is_not_alerted_for_any_longer(over: Check) -> None:
    series = write(Phase(120, GOOD), Phase(8, BAD))
    ended = [{**one, "values": f"{one['values']} stale"} for one in series]
    steps = 160 * 60 // STEP_SECONDS
    others = write_rest(steps, millrace_desired_replicas=None, millrace_ready_replicas=None)
    kept = [one for one in others if "operator" in one["series"] and "leader" in one["series"]]
    ours = [one for one in ended if "leader" not in one["series"]]
    over([*ours, *kept], {127: [MOST], **minutes_of_quiet(129, 135, 159)})


def test_a_scrape_that_is_lost_neither_alerts_nor_ends_an_alert(over: Check) -> None:
    lost = Phase(1, {}, is_scraped=False)
    calm = write(Phase(30, GOOD), lost, Phase(30, GOOD))
    over(calm, minutes_of_quiet(30, 31, 32, 35, 60))
    late = write(Phase(120, GOOD), Phase(7, BAD), lost, Phase(4, BAD))
    over(late, {minute: [MOST] for minute in (127, 128, 129, 131)})


def test_a_target_between_two_bounds_is_told_as_a_doubt_and_pages_nobody(over: Check) -> None:
    """Between 3 s and 4 s. At 3.2 s the objective is kept, at 3.9 s missed: the buckets are equal."""
    for seconds in (3.2, 3.9):
        over(write(Phase(180, {seconds: 60.0}), target=3.5), {**minutes_of_quiet(30), 150: [DOUBT]})


def test_a_target_between_two_bounds_that_is_surely_missed_pages(pages: Check) -> None:
    pages(write(Phase(120, GOOD), Phase(20, {4.5: 60.0}), target=3.5), {119: [], 127: [MOST]})


def test_a_target_over_every_bound_or_under_every_bound_is_a_doubt_or_a_miss(over: Check) -> None:
    over(write(Phase(180, {3000.0: 60.0}), target=3600.0), {150: [DOUBT]})
    over(write(Phase(180, {0.0009: 60.0}), target=0.0005), {150: [DOUBT]})
    over(write(Phase(30, GOOD), target=0.0005), {15: [MOST, FAST, FASTER_THAN_6]})


def test_two_objectives_of_a_metric_are_judged_apart(pages: Check) -> None:
    phases = (Phase(60, GOOD), Phase(30, {0.2: 30.0, 0.9: 30.0}))
    steps = 90 * 60 // STEP_SECONDS
    other = [*write_objective(TTFT, 50, 0.25, steps), *write_objective(TTFT, 99, 0.75, steps)]
    pages([*write(*phases), *other], {60: [], 85: [FAST, FASTER_THAN_6]})


WELL = {"completed": 60.0}
FAIL_FAST, FAIL_FAST_6 = (Alert("RequestsFailFast", "page", window) for window in ("1h", "6h"))
FAIL_SLOW = [Alert("RequestsFailSlowly", "ticket", window) for window in ("1d", "3d")]


def test_failing_requests_page_and_clients_that_leave_do_not(pages: Check) -> None:
    steps = 120 * 60 // STEP_SECONDS
    leaving = {"completed": 9.0, "client_left": 991.0}
    series = [*write_gateway([(60, leaving), (60, {**leaving, "upstream_error": 1.0})]), *write_rest(steps)]
    pages(series, {59: [], 85: [FAIL_FAST, FAIL_FAST_6]})


def test_a_few_failures_that_go_on_are_tickets(over: Check) -> None:
    steps = 240 * 60 // STEP_SECONDS
    few = {"completed": 59.76, "no_replica": 0.24}
    over([*write_gateway([(240, few)]), *write_rest(steps)], {30: [], 230: FAIL_SLOW})


def test_refusals_of_full_replicas_count_as_failures(over: Check) -> None:
    steps = 60 * 60 // STEP_SECONDS
    series = [*write_gateway([(60, {**WELL, "refused": 6.0})]), *write_rest(steps)]
    over(series, {50: [FAIL_FAST, FAIL_FAST_6, *FAIL_SLOW]})


def test_sequences_that_replicas_refuse_are_no_failed_requests(over: Check) -> None:
    """A request has many, and those that come past the gateway are not among its requests."""
    steps = 60 * 60 // STEP_SECONDS
    labels = {**SERVICE, "pod": REPLICA, "reason": "overloaded"}
    refused = write_series("vllm:admission_rejections_total", labels, [3.0 * step for step in range(steps)])
    over([*write_gateway([(60, WELL)]), refused, *write_rest(steps)], minutes_of_quiet(50))


def test_a_service_set_to_no_replicas_may_refuse(over: Check) -> None:
    steps = 60 * 60 // STEP_SECONDS
    rest = write_rest(steps, millrace_desired_replicas=0, millrace_ready_replicas=0)
    over([*write_gateway([(60, {"no_replica": 60.0})]), *rest], minutes_of_quiet(30, 59))


def test_a_service_at_rest_that_refuses_alerts(over: Check) -> None:
    steps = 60 * 60 // STEP_SECONDS
    none = dict.fromkeys(
        ("millrace_desired_replicas", "millrace_ready_replicas", "millrace_min_replicas"), 0.0
    )
    series = [*write_gateway([(60, {"no_replica": 60.0})]), *write_rest(steps, **none)]
    over(series, {50: [FAIL_FAST, FAIL_FAST_6, *FAIL_SLOW]})


@pytest.mark.parametrize(
    ("name", "metric", "labels"),
    [
        ("SignalsMissing", "millrace_scaling_reason", {"reason": "SignalsMissing"}),
        ("ObjectiveInfeasible", "millrace_objective_infeasible", {"metric": "TimeToFirstToken"}),
        ("ReplicasPending", "millrace_failing_replicas", {"reason": "Unschedulable"}),
        ("ReplicasFailing", "millrace_failing_replicas", {"reason": "OutOfMemory"}),
        ("LabelsRenamed", "millrace_desired_replicas", {"exported_namespace": "shop"}),
        ("GatewaySilent", "millrace_operator_gateways_silent", {}),
        ("NodeCacheFull", "millrace_node_cache_excess_bytes", {}),
    ],
)
def test_a_state_that_lasts_is_a_ticket(
    over: Check, name: str, metric: str, labels: Mapping[str, str]
) -> None:
    steps = 60 * 60 // STEP_SECONDS
    state = write_constant(metric, {**SERVICE, "pod": "operator-0", **labels}, 1, steps)
    over([*write_rest(steps), state], {5: [], 50: [Alert(name, "ticket")]})


def test_a_name_that_leads_elsewhere_is_told(over: Check) -> None:
    steps = 60 * 60 // STEP_SECONDS
    shadowed = write_constant("millrace_name_shadowed", {**SERVICE, "pod": "operator-0"}, 1, steps)
    over([*write_rest(steps), shadowed], {10: [], 50: [Alert("NameShadowed", "info")]})


@pytest.mark.parametrize(
    ("metric", "value", "alert"),
    [
        ("leader_election_master_status", 0, Alert("OperatorWithoutLeader", "page")),
        ("leader_election_master_status", None, Alert("OperatorWithoutLeader", "page")),
        ("millrace_gateway_requests_in_flight", None, Alert("GatewayWithoutReplicas", "page")),
        ("millrace_ready_replicas", 0, Alert("ServiceWithoutReplicas", "ticket")),
        ("millrace_operator_gateways", 0, Alert("GatewayUnknown", "ticket")),
    ],
)
def test_what_is_gone_alerts(over: Check, metric: str, value: float | None, alert: Alert) -> None:
    steps = 30 * 60 // STEP_SECONDS
    over(write_rest(steps, **{metric: value}), {1: [], 29: [alert]})


CACHE = {"namespace": "millrace-system", "pod": "millrace-node-cache-x7k2p"}
CACHE_FAILING = Alert("NodeCacheFailing", "ticket")


def write_cache_failures(*phases: tuple[int, float]) -> Series:
    """Failed looks of one node, in phases of minutes with so many a minute."""
    steps = [
        rate * STEP_SECONDS / 60 for minutes, rate in phases for _ in range(minutes * 60 // STEP_SECONDS)
    ]
    return write_series("millrace_node_cache_failures_total", CACHE, accumulate(steps))


def test_a_node_cache_that_fails_for_long_is_a_ticket_until_it_is_well(over: Check) -> None:
    failing = write_cache_failures((20, 0), (60, 4), (40, 0))
    firing = {minute: [CACHE_FAILING] for minute in (45, 80)}
    over([*write_rest(240), failing], {**minutes_of_quiet(19, 30, 95), **firing})


def test_a_node_cache_whose_looks_take_minutes_and_fail_is_a_ticket_too(over: Check) -> None:
    over([*write_rest(240), write_cache_failures((20, 0), (100, 0.5))], {30: [], 60: [CACHE_FAILING]})


def test_a_look_that_fails_once_in_ten_minutes_alerts_nobody(over: Check) -> None:
    one = ((1, 1.0), (9, 0.0))
    over([*write_rest(240), write_cache_failures((20, 0), *one * 10)], minutes_of_quiet(*range(19, 120, 3)))


def test_an_api_server_that_is_away_from_the_node_caches_for_four_minutes_is_no_ticket(over: Check) -> None:
    over([*write_rest(180), write_cache_failures((20, 0), (4, 4), (66, 0))], minutes_of_quiet(*range(19, 90)))


def test_a_node_that_is_over_its_limit_while_models_are_fetched_is_no_ticket(over: Check) -> None:
    excess = write_series("millrace_node_cache_excess_bytes", CACHE, [0] * 40 + [1e9] * 40 + [0] * 100)
    over([*write_rest(180), excess], minutes_of_quiet(*range(19, 90)))


def test_a_cluster_without_services_needs_no_gateway(over: Check) -> None:
    steps = 30 * 60 // STEP_SECONDS
    names = ("millrace_desired_replicas", "millrace_ready_replicas", "millrace_max_replicas")
    gone = dict.fromkeys((*names, "millrace_gateway_requests_in_flight"))
    over(write_rest(steps, **gone), minutes_of_quiet(5, 29))


def test_a_change_of_leader_neither_alerts_nor_ends_an_alert(over: Check, pages: Check) -> None:
    """Nobody leads for a minute; the old leader's pod and its series are gone."""
    steps = 60 * 60 // STEP_SECONDS
    name = {"name": "millrace-operator"}
    leaders = [
        write_series("leader_election_master_status", {**name, "pod": "operator-0"}, [1] * 40 + ["stale"]),
        write_series("leader_election_master_status", {**name, "pod": "operator-1"}, [0] * 42 + [1] * 78),
    ]
    objective = write_objective(TTFT, 95, 2.5, steps)
    gone = [one for one in objective if "operator-0" in one["series"]]
    kept = [one for one in objective if one not in gone]
    gone = [{**one, "values": f"{one['values'].partition('x')[0]}x39 stale"} for one in gone]
    rest = write_rest(steps, leader_election_master_status=None)
    late = write_latencies(TTFT, [Phase(15, GOOD), Phase(45, BAD)])
    series = [*late, *kept, *gone, *leaders, *rest]
    over(series, {14: []})
    pages(series, {minute: [MOST] for minute in (20, 21, 22)})


def test_at_the_maximum_only_a_missed_objective_is_a_ticket(over: Check) -> None:
    steps = 60 * 60 // STEP_SECONDS
    at_maximum = write_rest(steps, millrace_desired_replicas=4)
    objective = write_objective(TTFT, 95, 2.5, steps)
    over([*write_latencies(TTFT, [Phase(60, GOOD)]), *objective, *at_maximum], minutes_of_quiet(59))
    late = write_latencies(TTFT, [Phase(30, GOOD), Phase(30, {0.2: 54.0, 8.0: 6.0})])
    over([*late, *objective, *at_maximum], {29: [], 55: [Alert("AtMaximum", "ticket")]})


def test_at_the_maximum_a_few_misses_are_no_ticket(over: Check) -> None:
    steps = 120 * 60 // STEP_SECONDS
    late = write_latencies(TTFT, [Phase(120, {8.0: 5 / 60})])
    objective = write_objective(TTFT, 95, 2.5, steps)
    over([*late, *objective, *write_rest(steps, millrace_desired_replicas=4)], minutes_of_quiet(59, 100))


def test_at_the_maximum_an_objective_out_of_reach_is_told_as_that_alone(over: Check) -> None:
    steps = 60 * 60 // STEP_SECONDS
    late = write_latencies(TTFT, [Phase(60, {0.2: 54.0, 8.0: 6.0})])
    labels = {**SERVICE, "pod": "operator-0", "metric": TTFT.value, "percentile": "95"}
    infeasible = write_constant("millrace_objective_infeasible", labels, 1, steps)
    others = [*write_objective(TTFT, 95, 2.5, steps), *write_rest(steps, millrace_desired_replicas=4)]
    told = [Alert("ObjectiveInfeasible", "ticket"), SLOW_DAYS]
    over([*late, *others, infeasible], {55: told})


def test_every_alert_has_a_severity_and_a_section_in_the_runbooks_and_no_section_is_left_over() -> None:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    alerts = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    assert {alert["labels"]["severity"] for alert in alerts} == {"page", "ticket", "info"}
    assert all({"summary", "description"} == set(alert["annotations"]) for alert in alerts)
    headings = [
        line.removeprefix("### ")
        for line in (ROOT / "docs" / "runbooks.md").read_text().splitlines()
        if line.startswith("### ")
    ]
    assert sorted({alert["alert"] for alert in alerts}) == sorted(headings)
