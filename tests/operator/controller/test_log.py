"""What the log says of a service: each write that was made, why, and each refusal."""

import copy
from typing import Any

import pytest

from millrace_operator.kube.errors import ConflictError, NotLeaderError, RefusedError, TransientError
from testing.world import KEY, World

EXTERNAL = {"mode": "External", "minReplicas": 1, "maxReplicas": 1}
ABSENT, DIFFERS = "it does not exist", "it differs from what is wanted"
REFUSAL = "spec.template: invalid label"


@pytest.fixture(autouse=True)
def _level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "millrace_operator.controller")


def drain(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged of the service since the last call."""
    lines = [message.removeprefix(f"{KEY}: ") for message in caplog.messages]
    caplog.clear()
    return lines


def count_applied(lines: list[str]) -> int:
    """How many objects were applied."""
    return sum(1 + line.count(", ") for line in lines if line.startswith("apply "))


async def test_a_write_whose_event_comes_before_its_answer_is_logged_like_any(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(scaling=EXTERNAL, replicas=1)

    def hasten(name: str) -> None:
        write = getattr(world.cluster, name)

        async def send(*arguments: Any) -> Any:
            written = await write(*arguments)
            world.cache.put(copy.deepcopy(written))
            return written

        monkeypatch.setattr(world.cluster, name, send)

    for name in ("apply_new", "apply_owned", "apply_status"):
        hasten(name)
    await world.settle()
    assert count_applied(drain(caplog)) == 6
    world.edit(replicas=2)
    await world.settle()
    assert any(line.endswith("replicas 1 -> 2") for line in drain(caplog))


async def test_the_log_says_once_what_is_written_and_why(caplog: pytest.LogCaptureFixture) -> None:
    world = World(scaling=EXTERNAL, replicas=1)
    await world.settle()
    name = world.objects("Deployment")[0]["metadata"]["name"]
    first = world.pods()[0]["metadata"]["name"]
    children = ["ServiceAccount chat-replica", "Service chat-replicas", "Service chat"]
    children += [f"ControllerRevision {name}", f"Deployment {name}", "PodDisruptionBudget chat"]
    assert drain(caplog) == [
        "status: Starting, 0 of 1 desired replicas ready",
        f"apply {', '.join(children)}: {ABSENT}",
        "status: Serving, 1 of 1 desired replicas ready",
    ]
    world.edit(replicas=2)
    await world.settle()
    assert drain(caplog) == [
        "status: Serving, 1 of 2 desired replicas ready",
        f"apply Deployment {name}: replicas 1 -> 2",
        f"apply PodDisruptionBudget chat: {DIFFERS}",
        "status: Serving, 2 of 2 desired replicas ready",
    ]
    (second,) = {pod["metadata"]["name"] for pod in world.pods()} - {first}
    world.edit(replicas=1)
    await world.settle()
    assert drain(caplog) == [
        "status: Serving, 2 replicas ready, and 1 is desired",
        f"mark Pod {second}: it leaves first (0 requests in flight)",
        f"apply PodDisruptionBudget chat: {DIFFERS}",
        f"apply Deployment {name}: replicas 2 -> 1",
        "status: Serving, 1 of 1 desired replicas ready",
    ]


async def test_a_spec_that_was_never_read_has_no_counts(caplog: pytest.LogCaptureFixture) -> None:
    world = World(scaling={"mode": "Sideways"})
    await world.reconcile_until_quiet()
    assert drain(caplog) == ["status: SettingsInvalid"]
    world = World(replicas=1, scaling=EXTERNAL)
    await world.settle()
    drain(caplog)
    world.edit(scaling={"mode": "Sideways"})
    await world.reconcile_until_quiet()
    assert drain(caplog) == ["status: SettingsInvalid, 1 of 1 desired replicas ready"]


async def test_a_refused_write_is_a_warning_with_the_servers_words(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.cluster.faults.extend([None, RefusedError(REFUSAL)])
    await world.reconcile()
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == [f"{KEY}: ServiceAccount chat-replica is refused: {REFUSAL}"]
    assert not [line for line in drain(caplog) if line.startswith("apply ServiceAccount")]
    world.cluster.faults.extend([None, RefusedError(REFUSAL)])
    await world.reconcile()
    assert drain(caplog)[0] == "status: ChildRefused, 0 of 1 desired replicas ready"


async def test_the_log_is_in_the_order_of_the_writes(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.cluster.faults.extend([None, None, RefusedError(REFUSAL)])
    await world.reconcile()
    assert [line.partition(" ")[0] for line in drain(caplog)] == ["status:", "apply", "Service", "apply"]


async def test_an_event_that_is_not_recorded_is_said_and_holds_up_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    await world.reconcile_until_quiet()
    world.run_controllers()
    world.cluster.faults.extend([None, TransientError("away")])
    await world.reconcile()
    assert world.condition("Ready")["status"] == "True"
    assert "event not recorded: away" in drain(caplog)


@pytest.mark.parametrize("fault", [NotLeaderError("the Lease ran out"), ConflictError("old")])
@pytest.mark.parametrize("num_written", range(4))
async def test_a_write_that_was_not_made_is_not_claimed(
    caplog: pytest.LogCaptureFixture, fault: Exception, num_written: int
) -> None:
    world = World()
    world.cluster.faults.extend([*[None] * num_written, fault, NotLeaderError("still")])
    with pytest.raises((NotLeaderError, ConflictError)):
        await world.reconcile()
    lines = drain(caplog)
    assert len(lines) == min(num_written, 2)  # the status, and what was applied
    assert count_applied(lines) == max(num_written - 1, 0)
