"""The fleet that the autoscaler reads from a service's pods."""

import pytest

from millrace_operator.api.conditions import parse_time
from millrace_operator.autoscaler.run.fleet import read_fleet
from millrace_operator.autoscaler.signals.observation import Unplaced
from testing.world import crash_status, make_pod, make_service, ready_status, unschedulable_status


def test_what_the_scheduler_says_of_pods_without_a_node_is_read() -> None:
    pods = [
        make_pod("chat-1", **ready_status()),
        make_pod("chat-2", **unschedulable_status("0/1 nodes are available: 1 Insufficient nvidia.com/gpu.")),
        make_pod("chat-3", **crash_status()),
        make_pod("chat-4"),
    ]
    going = make_pod("chat-5", **unschedulable_status())
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"
    service = make_service() | {"status": {"scaling": {"desiredReplicas": 4}}}
    fleet = read_fleet(service, [*pods, going], parse_time("2026-01-01T00:20:00Z") or 0.0)
    words = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    assert fleet.unplaced == {"chat-2": Unplaced(1200.0, words)}
    assert fleet.ready == {"chat-1"}
    assert len(fleet.revisions) == fleet.current == 4


@pytest.mark.parametrize(
    ("placed", "counted"), [("00:00:01", 3060.0), ("00:10:00", 3060.0), ("00:50:00", 60.0)]
)
def test_the_wait_for_room_is_no_cold_start_and_that_for_a_node_is_part_of_one(
    placed: str, counted: float
) -> None:
    pod = make_pod("chat-1", **ready_status())
    times = {"Ready": "00:51:00", "PodScheduled": placed}
    for condition in pod["status"]["conditions"]:
        condition["lastTransitionTime"] = f"2026-01-01T{times[condition['type']]}Z"
    assert read_fleet(None, [pod], 0.0).cold_starts == {"chat-1": counted}


def test_a_pod_is_without_a_node_whatever_the_scheduler_calls_that() -> None:
    pod = make_pod("chat-1", **unschedulable_status("binding volumes failed"))
    pod["status"]["conditions"][0]["reason"] = "SchedulerError"
    assert [one.words for one in read_fleet(None, [pod], 0.0).unplaced.values()] == ["binding volumes failed"]
