"""The causes of a changed count."""

from typing import Any

import pytest

from millrace_kubectl.count_changes import describe_causes

USUAL = {
    "arrivalsPerSecond": "10",
    "promptTokens": "900",
    "generationTokens": "400",
    "perReplicaPerSecond": "4",
}


def change(counts: tuple[int, int] = (4, 6), **load: str) -> dict[str, Any]:
    names = {"rate": "arrivalsPerSecond", "prompt": "promptTokens", "answer": "generationTokens"}
    known = {names.get(name, "perReplicaPerSecond"): text for name, text in load.items()}
    return {"from": counts[0], "to": counts[1], "load": {**USUAL, **known}}


FORMER = change((3, 4))


@pytest.mark.parametrize(
    ("after", "causes"),
    [
        (change(prompt="3100", carried="2"), "prompts 900 -> 3100 tokens"),
        (change(rate="12", prompt="3100"), "prompts 900 -> 3100 tokens, 10 -> 12 req/s"),
        (change(rate="20", prompt="1200", answer="500"), "10 -> 20 req/s, prompts 900 -> 1200 tokens"),
        (change(rate="10.9", prompt="980"), ""),
        (change(rate="5", carried="2"), "a replica carries 4 -> 2 req/s"),
        (change((6, 5), rate="5", prompt="1800"), "10 -> 5 req/s"),
        (change((6, 5), carried="8"), "a replica carries 4 -> 8 req/s"),
        (change((6, 5), rate="0"), "10 -> 0 req/s"),
        (change((6, 5), carried="2"), ""),
        (change(rate="no number"), ""),
        ({"from": 4, "to": 6}, ""),
        ({"from": 4, "to": 6, "load": None}, ""),
    ],
)
def test_what_moved_the_way_the_count_did_is_a_cause_the_largest_first(
    after: dict[str, Any], causes: str
) -> None:
    assert describe_causes(after, FORMER) == causes


def test_without_a_change_before_there_is_no_cause() -> None:
    assert describe_causes(change(rate="90"), None) == ""
    assert describe_causes(change(rate="90"), {"from": 3, "to": 4}) == ""


@pytest.mark.parametrize(
    "decided",
    [
        {"binding": "pin", "reason": "Pinned"},
        {"binding": "spec.replicas", "reason": "External"},
        {"binding": "spec.scaling", "reason": "Bounds"},
        {"binding": "minReplicas", "reason": "ScalingUp"},
        {"reason": "Pinned"},
        {"reason": "External"},
        {"reason": "Bounds"},
    ],
    ids=lambda decided: "-".join(decided.values()),
)
def test_the_load_is_no_cause_of_what_a_pin_or_an_edit_did(decided: dict[str, str]) -> None:
    after = {**change(rate="20"), **decided}
    assert describe_causes(after, FORMER) == ""
    assert describe_causes({**after, "binding": "forecast", "reason": "ScalingUp"}, FORMER) != ""


def test_a_bound_that_stops_a_count_is_no_cause_of_its_change() -> None:
    rise = {**change(rate="20"), "binding": "maxReplicas", "reason": "ScalingUp"}
    assert describe_causes(rise, FORMER).endswith("-> 20 req/s")
    fall = {**change(rate="2"), "from": 4, "to": 2, "reason": "ScalingDown"}
    assert describe_causes({**fall, "binding": "minReplicas"}, FORMER).endswith("-> 2 req/s")
    assert describe_causes({**fall, "binding": "maxReplicas"}, FORMER) == ""
