"""When operator and gateway count as rolled out: as `kubectl rollout status` counts."""

from typing import Any

import pytest

from e2e.cluster.product import describe_rollout


def deployment(**status: int) -> dict[str, Any]:
    """Return a Deployment of two replicas whose status is of its newest spec."""
    return {
        "metadata": {"generation": 3},
        "spec": {"replicas": 2},
        "status": {"observedGeneration": 3, **status},
    }


def test_all_new_pods_available_and_no_others_is_rolled_out() -> None:
    done = deployment(replicas=2, updatedReplicas=2, readyReplicas=2, availableReplicas=2)
    assert describe_rollout(done) == ""


@pytest.mark.parametrize(
    ("status", "line"),
    [
        ({}, "0 of 2 pods ready"),
        ({"replicas": 2, "readyReplicas": 2, "availableReplicas": 2}, "0 of 2 pods ready, 2 older ones left"),
        (
            {"replicas": 3, "updatedReplicas": 2, "readyReplicas": 2, "availableReplicas": 2},
            "1 of 2 pods ready, 1 older one left",
        ),
        (
            {"replicas": 3, "updatedReplicas": 2, "readyReplicas": 3, "availableReplicas": 3},
            "2 of 2 pods ready, 1 older one left",
        ),
        (
            {"replicas": 2, "updatedReplicas": 2, "readyReplicas": 2, "availableReplicas": 1},
            "1 of 2 pods ready",
        ),
    ],
)
def test_an_older_pod_stands_in_for_no_new_one(status: dict[str, int], line: str) -> None:
    assert describe_rollout(deployment(**status)) == line


def test_all_pods_are_older_ones_until_the_newest_spec_is_seen() -> None:
    before = deployment(replicas=2, updatedReplicas=2, readyReplicas=2, availableReplicas=2)
    before["metadata"]["generation"] = 4
    assert describe_rollout(before) == "0 of 2 pods ready, 2 older ones left"
