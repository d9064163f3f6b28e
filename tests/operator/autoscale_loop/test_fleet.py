"""What the tick reads of a service's pods in the API server."""

from millrace_operator.autoscale_loop.tick import read_fleet
from tests.operator.world import crash_status, make_pod, make_service, ready_status, unschedulable_status


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
    fleet = read_fleet(service, [*pods, going])
    assert fleet.unschedulable == {"chat-2": "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."}
    assert fleet.ready == {"chat-1"}
    assert len(fleet.revisions) == fleet.current == 4
