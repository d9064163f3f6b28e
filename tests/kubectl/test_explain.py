"""`explain`: its words for every state, and what a user of it sees."""

import copy
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from millrace_kubectl.details import list_changes, list_details
from millrace_kubectl.facts import Facts
from millrace_kubectl.summary import summarise
from millrace_kubectl.wording import BINDINGS, NO_OPERATOR
from millrace_operator.api import crd
from millrace_operator.api.change_record import render_change_line, render_changes
from millrace_operator.api.conditions import Reason as ConditionReason
from millrace_operator.api.conditions import parse_time, render_time
from millrace_operator.api.status_lines import read_objectives, render_objective
from millrace_operator.api.types import Spec, Status
from millrace_operator.autoscaler.decide.decision import BINDINGS as OPERATORS_BINDINGS
from millrace_operator.autoscaler.decide.decision import Reason
from tests.kubectl.conftest import Terminal
from tests.kubectl.golden import EXPECTED, NOW, read_cases, render
from tests.kubectl.lives.refused import first_version_is_unknown

CASES = read_cases()
SCHEMA = crd.render_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
OBJECTIVES_PAGE = "docs/how-to/objectives.md"
CANDIDATES = {"forecast", "queue", "inFlight", "kvCache", "feedback", "tooFew", "idle", "learning"}
ELSEWHERE = {"spec.replicas", "pin"}
"""Bindings that have sentences of their own."""


@pytest.fixture
def shop(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setattr(time, "time", lambda: NOW)
    terminal.put(CASES["missed-loading-pending"])
    return terminal


def test_it_says_what_it_said() -> None:
    assert render() == EXPECTED.read_text(), "if that is wanted: python -m tests.kubectl.golden"


@pytest.mark.parametrize("name", CASES)
def test_each_object_is_one_that_the_operator_writes(name: str) -> None:
    service = CASES[name]
    Spec.model_validate(service["spec"])
    status = service.get("status", {})
    Status.model_validate(status)
    assert set(unknown_fields(status, SCHEMA, "status")) == set()


def unknown_fields(value: Any, schema: dict[str, Any], path: str) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from unknown_fields(item, schema["items"], path)
    elif isinstance(value, dict):
        for name, field in value.items():
            known = schema.get("properties", {}).get(name)
            if known is None:
                yield f"{path}.{name}"
            else:
                yield from unknown_fields(field, known, f"{path}.{name}")


def test_every_binding_and_every_reason_has_its_words_and_its_object() -> None:
    assert set(OPERATORS_BINDINGS) | CANDIDATES <= set(BINDINGS)
    shown = {case.get("status", {}).get("scaling", {}).get("binding") for case in CASES.values()}
    assert set(BINDINGS) | ELSEWHERE <= shown
    reasons = {case.get("status", {}).get("scaling", {}).get("reason") for case in CASES.values()}
    assert {*map(str, Reason), "External", "Bounds", "Pinned"} <= reasons


def test_every_cause_that_degrades_has_a_remedy() -> None:
    cases = copy.deepcopy(CASES["degraded-crashing"])
    causes = [reason for reason in ConditionReason if "any that fails" in line_of(reason)]
    assert ConditionReason.OUT_OF_MEMORY in causes
    for reason in causes:
        degraded = next(c for c in cases["status"]["conditions"] if c["type"] == "Degraded")
        degraded["reason"] = str(reason)
        remedies = summarise(Facts(cases, NOW)).remedies
        assert remedies or reason is ConditionReason.UNSCHEDULABLE, reason


def line_of(reason: str) -> str:
    page = (crd.REPOSITORY / "docs" / "resource.md").read_text()
    return next((line for line in page.splitlines() if line.startswith(f"| `{reason}` |")), "")


@pytest.mark.parametrize("name", CASES)
def test_it_is_six_short_lines_at_most(name: str) -> None:
    lines = summarise(Facts(CASES[name], NOW)).lines
    assert 1 < len(lines) <= 6
    assert max(map(len, lines)) <= max(len(line) if line.startswith("DEGRADED ") else 160 for line in lines)


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in pairs:
        yield (*path, key)
        yield from paths(child, (*path, key))


NEEDED = {
    "type",
    "status",
    "reason",
    "mode",
    "desiredReplicas",
    "at",
    "from",
    "to",
    "observedAt",
    "lastTransitionTime",
}
NEEDED |= {
    "metric",
    "percentile",
    "targetSeconds",
    "state",
    "since",
    "name",
    "signal",
    "ready",
    "starting",
    "failing",
}
NEEDED |= {"unschedulable", "alphaSeconds", "betaSecondsPerToken", "gammaSecondsPerContextToken", "fitted"}


LISTS = ("candidates", "counts")
"""Of which the API server asks for every field."""


@pytest.mark.parametrize("name", CASES)
def test_a_missing_field_is_never_shown_as_zero(name: str) -> None:
    """Each field that may be absent is taken away, and no zero may appear that was not there before."""
    zeros = count_zeros(explain(CASES[name]))
    for path in paths(CASES[name].get("status", {})):
        if path[-1] not in NEEDED and isinstance(path[-1], str) and not {*path[-3:-2]} & {*LISTS}:
            cut = copy.deepcopy(CASES[name])
            at = cut["status"]
            for key in path[:-1]:
                at = at[key]
            del at[path[-1]]
            assert count_zeros(explain(cut)) <= zeros, path


def count_zeros(text: str) -> int:
    return sum(word.strip("(,;)") in {"0", "0s", "0ms", "0%"} for word in text.split())


def explain(service: dict[str, Any]) -> str:
    facts = Facts(service, NOW, service.get("decision"))
    lines = [*summarise(facts).lines, *list_details(facts), *list_changes(facts, 3600.0)]
    return "\n".join(lines)


def test_figures_that_nobody_renews_are_old_whatever_they_say() -> None:
    """They are renewed every ten minutes: nobody leads."""
    seen = NOW - 12.0
    for age, is_old in ((14 * 60.0, False), (16 * 60.0, True), (3 * 86400.0, True)):
        summary = summarise(Facts(CASES["met"], seen + age))
        assert (summary.remedies == (NO_OPERATOR,)) is is_old, age
        assert summary.state.startswith("OLD, was MEETING" if is_old else "MEETING"), age


def test_a_pin_that_nobody_takes_up_for_a_minute_needs_an_operator() -> None:
    """A user who has just pinned gets no advice to wait."""
    pinned = parse_time("2026-01-02T02:56:00Z") or 0.0
    for seconds, remedy in ((59.0, "kubectl millrace unpin chat -n shop"), (61.0, NO_OPERATOR)):
        summary = summarise(Facts(CASES["pin-not-taken-up"], pinned + seconds))
        assert summary.remedies == (remedy,), seconds


def test_it_asks_for_the_service_alone(shop: Terminal) -> None:
    answer = shop.run("explain", "chat")
    assert answer.status == 0
    assert answer.out.startswith("chat MISSING TTFT p95 3.4s > 2s for 6m; ")
    assert [call[:3] for call in shop.calls] == [["get", "inferenceservices.v1alpha1.millrace.dev", "chat"]]


def test_the_changes_since_are_listed(shop: Terminal) -> None:
    out = shop.run("explain", "chat", "--since", "2h").out
    assert "CHANGES in the last 2h\n  01:12 UTC 3 -> 4 (8.1 -> 12.9 req/s) ScalingUp" in out
    assert "2 -> 3" not in out
    assert "NO CHANGE in the last 60s" in shop.run("explain", "chat", "--since", "1m").out


def test_a_full_record_says_that_older_changes_are_lost(shop: Terminal) -> None:
    service = shop.service
    service["status"]["scaling"]["lastChanges"] *= 2
    service["status"]["scaling"]["lastChanges"] = service["status"]["scaling"]["lastChanges"][:5]
    shop.put(service)
    assert "(only the last 5 are kept)" in shop.run("explain", "chat", "--since", "24h").out


def make_changes(count: int) -> list[dict[str, Any]]:
    """So many changes, one a minute, the last a minute ago."""
    words = {"reason": "ScalingUp", "binding": "forecast", "message": "ScalingUp: by the forecast"}
    return [
        {"at": render_time(NOW - 60 * (count - number)), "from": number, "to": number + 1, **words}
        for number in range(count)
    ]


def put_changes(shop: Terminal, changes: list[dict[str, Any]]) -> None:
    service = shop.service
    service["status"]["scaling"]["lastChanges"] = [render_change_line(one) for one in changes]
    shop.put(service)


def test_older_changes_than_status_has_are_read_from_the_record(shop: Terminal) -> None:
    """The record is ten minutes old: the newest changes are in status alone."""
    changes = make_changes(100)
    shop.put_record(json.dumps({"at": "2026-01-01T00:00:00Z", "changes": render_changes(changes[:95])}))
    put_changes(shop, changes[-5:])
    lines = shop.run("explain", "chat", "--since", "6h").out.splitlines()
    at = lines.index("CHANGES in the last 6h")
    assert lines[at + 1] == "  (known back to 01:17 UTC)"
    counts = [line.split()[2] for line in lines[at + 2 :]]
    assert counts == [str(number) for number in range(100)]
    assert "known back" not in shop.run("explain", "chat", "--since", "1h").out
    asked = [call for call in shop.calls if call[1] == "controllerrevisions.v1.apps"]
    assert ["--selector=millrace.dev/service=chat" in call for call in asked] == [True, True]


@pytest.mark.parametrize(
    "record",
    [None, "{}", "null", '{"at": "2026", "changes": "no changes\\n[[[["}', '{"at": "2026", "changes": 7}'],
    ids=["forbidden", "empty", "null", "damaged", "number"],
)
def test_without_a_record_to_read_status_alone_is_shown(shop: Terminal, record: str | None) -> None:
    shop.put_record(record)
    put_changes(shop, make_changes(5))
    answer = shop.run("explain", "chat", "--since", "6h")
    assert (answer.status, answer.error) == (0, "")
    assert "(only the last 5 are kept)\n  (known back to 02:52 UTC)\n" in answer.out
    assert answer.out.count("by the forecast") == 5


def test_verbose_shows_each_input_candidate_and_condition(shop: Terminal) -> None:
    shop.put_decision(CASES["missed-loading-pending"]["decision"])
    out = shop.run("explain", "chat", "-v").out
    for text in (
        "CANDIDATE forecast asks for 6",
        "waiting      12",
        "MODEL a step takes 21.2ms",
        "REPLICA NVIDIA H100 80GB HBM3: cuda, bfloat16, ",
        "CONDITION Ready",
    ):
        assert text in out


def test_without_the_right_to_ask_the_operator_it_shows_the_status_alone(shop: Terminal) -> None:
    answer = shop.run("explain", "chat", "-v")
    assert answer.status == 0
    assert "NOT ASKED for the inputs of the last decision: kubectl says: error: pods" in answer.out
    assert "OBJECTIVE TTFT p95 Missed" in answer.out
    assert "CONDITION Ready" in answer.out


def test_json_has_null_for_what_is_unknown(shop: Terminal) -> None:
    found = json.loads(shop.run("explain", "chat", "-o", "json").out)
    assert (found["namespace"], found["name"], found["want"], found["have"]) == ("shop", "chat", 6, 4)
    assert found["summary"][0].startswith("chat MISSING")
    assert found["scaling"]["evidence"]["waiting"] == 12
    assert "tensor parallel 2" in found["serving"]
    shop.put(CASES["not-seen"])
    found = json.loads(shop.run("explain", "chat", "-o", "json").out)
    unknown = ("want", "have", "scaling", "pin", "serving", "decision")
    assert [found[name] for name in unknown] == [None] * len(unknown)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [(("--since", "yesterday"), "write for example"), (("-o", "yaml"), "choose from"), ((), "NAME")],
)
def test_bad_usage_is_an_error(shop: Terminal, arguments: tuple[str, ...], text: str) -> None:
    answer = shop.run("explain", *(("chat", *arguments) if arguments else ()))
    assert answer.status == 2
    assert text in answer.error


@pytest.mark.parametrize("format_", ["text", "json"])
def test_no_text_of_the_cluster_steers_the_terminal(shop: Terminal, format_: str) -> None:
    service = shop.service
    degraded = next(one for one in service["status"]["conditions"] if one["type"] == "Degraded")
    degraded["message"] = "it ended: \x1b[2J\x1b]0;owned\x07 gone\r\x9b1A \u202etxt.\x7f\x00 the end"
    shop.put(service)
    out = shop.run("explain", "chat", "-v", "-o", format_).out
    assert "the end" in out
    assert all(char.isprintable() or char == "\n" for char in out)


def test_no_refusal_of_the_cluster_steers_the_terminal(shop: Terminal) -> None:
    shop.refuse("error: \x1b[2Jit is forbidden")
    assert shop.run("explain", "chat").error == "kubectl millrace: kubectl says: error: [2Jit is forbidden\n"


def edit_objective(service: dict[str, Any], **changes: Any) -> None:
    """Change what status has of the first objective."""
    evidence = service["status"]["scaling"]["evidence"]
    first, *others = read_objectives(evidence["latencies"])
    first |= changes
    evidence["latencies"] = [render_objective(one, one.get("doubt")) for one in (first, *others)]


@pytest.mark.parametrize(("recommended", "ready"), [(4, 6), (None, 6), (9, 6), (4, 5)])
def test_a_pin_that_is_missing_an_objective_is_raised_and_not_undone(
    recommended: int | None, ready: int
) -> None:
    """The advice must not be the reverse of the advice of a moment ago."""
    service = copy.deepcopy(CASES["pinned"])
    scaling = service["status"]["scaling"]
    edit_objective(service, state="Missed")
    scaling["recommendedReplicas"] = recommended
    service["status"]["readyReplicas"] = ready
    scaling["evidence"]["starting"] = 6 - ready
    remedies = summarise(Facts(service, NOW)).remedies
    if recommended == 9:
        assert remedies == ("kubectl millrace unpin chat -n shop",)
    elif ready < 6:
        assert remedies == ("wait for the replicas that are not ready",)
    else:
        assert remedies == ("kubectl millrace pin chat 7 --for 1h -n shop",)


def test_the_status_of_another_version_is_shown_as_far_as_it_is_understood() -> None:
    service = copy.deepcopy(CASES["missed-loading-pending"])
    evidence = service["status"]["scaling"]["evidence"]
    evidence["latencies"] = ["P95 of something"]
    service["status"]["scaling"]["lastChanges"] = ["yesterday 1 -> 2 up by"]
    del evidence["starting"]
    figures = service["decision"]["evidence"]
    figures["rejected"] = [{"signal": "arrivals"}]
    figures["arrivalsPerSecond"] = evidence["arrivalsPerSecond"] = "NaN"
    figures["oldestSampleAt"] = "yesterday"
    text = explain(service)
    assert "nan" not in text
    assert "REJECTED arrivals: unknown" in text


@pytest.mark.parametrize(
    ("reason", "says"),
    [
        ("between the bounds 0.25 s and 0.5 s: choose one of them", "between the bounds 0.25 s and 0.5 s"),
        (
            "its target is above the last bound of the histogram: choose at most 20 s",
            "above the last bound",
        ),
        (None, "its target is between two bounds of the histogram"),
    ],
)
def test_where_requests_are_enough_the_target_is_why_nobody_can_judge_it(
    reason: str | None, says: str
) -> None:
    service = copy.deepcopy(CASES["objective-between-bounds"])
    for samples in (59, 60):
        edit_objective(service, samples=samples, doubt=reason)
        summary = summarise(Facts(service, NOW))
        assert (says in summary.state) is (samples == 60)
        assert (summary.state == "UNKNOWN TTFT p95: only 59 requests measured") is (samples == 59)
        assert (f"target of TTFT p95: {OBJECTIVES_PAGE}" in "".join(summary.remedies)) is (samples == 60)
    assert (crd.REPOSITORY / OBJECTIVES_PAGE).exists()


@pytest.mark.parametrize(
    ("state", "measured", "says"),
    [
        ("Missed", "2.004", "MISSING TTFT p95 2.004s > 2s"),
        ("Missed", "2.0004", "MISSING TTFT p95 2.0004s > 2s"),
        ("Missed", "2.05", "MISSING TTFT p95 2.05s > 2s"),
        ("Met", "1.999", "MEETING TTFT p95 1.999s <= 2s"),
        ("Met", "2", "MEETING TTFT p95 2s <= 2s"),
    ],
)
def test_a_latency_that_is_not_its_target_does_not_look_like_it(state: str, measured: str, says: str) -> None:
    service = copy.deepcopy(CASES["met"])
    edit_objective(service, state=state, measuredSeconds=measured)
    assert summarise(Facts(service, NOW)).state.startswith(f"{says} for ")


async def test_a_service_that_never_ran_does_not_serve() -> None:
    world = await first_version_is_unknown()
    state = summarise(Facts(world.service, world.now)).state
    assert state == "DOWN: spec.engine.version 0.3.0 is unknown to this operator: writ…"
