"""Probes of one run of a container, against a container that answers what it is told."""

import asyncio
from typing import Any

import pytest

from e2e.cluster.nodes.probes import (
    Consequence,
    ContainerProbes,
    ProbeAnswer,
    ProbeCounter,
    ProbeKind,
    decide,
)

pytestmark = pytest.mark.reads("e2e/cluster", "testing/polling.py", "operator/millrace_kubernetes")


class Told:
    """Gives the answers that it was told, by the probe's name, and then none any more."""

    def __init__(self, **answers: list[str | None]) -> None:
        self.answers = answers
        self.timeouts: set[float] = set()

    async def ask(self, action: dict[str, Any], timeout_seconds: float) -> str | None:
        self.timeouts.add(timeout_seconds)
        left = self.answers[action["exec"]]
        if not left:
            await asyncio.Event().wait()
        return left.pop(0)


def probe(name: str, **fields: Any) -> dict[str, Any]:
    return {"exec": name, "periodSeconds": 0, **fields}


async def follow(container: dict[str, Any], told: Told) -> list[str]:
    """Return what each answer led to, once no answer is left."""
    seen: list[ProbeAnswer] = []
    task = asyncio.create_task(ContainerProbes(container, told, seen.append).run())
    for _ in range(50):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return [f"{answer.kind.name.lower()}: {answer.consequence.value}" for answer in seen]


async def test_nothing_else_is_asked_before_startup_has_passed() -> None:
    container = {"startupProbe": probe("s"), "readinessProbe": probe("r"), "livenessProbe": probe("l")}
    told = Told(s=["no", "no", None], r=[None], l=[None])
    assert await follow(container, told) == [
        "startup: nothing",
        "startup: nothing",
        "startup: note started",
        "readiness: note ready",
        "liveness: nothing",
    ]
    assert told.timeouts == {1.0}


async def test_a_startup_that_fails_for_good_restarts() -> None:
    container = {"startupProbe": probe("s", failureThreshold=2, timeoutSeconds=3)}
    told = Told(s=["no", "no"])
    assert await follow(container, told) == ["startup: nothing", "startup: restart"]
    assert told.timeouts == {3.0}


async def test_nothing_is_asked_after_a_restart_was_decided() -> None:
    container = {"startupProbe": probe("s", failureThreshold=1), "readinessProbe": probe("r")}
    told = Told(s=["no", None], r=[None])
    assert await follow(container, told) == ["startup: restart"]
    container = {"livenessProbe": probe("l", failureThreshold=1)}
    told = Told(l=["no", "no"])
    assert await follow(container, told) == ["liveness: restart"]


async def test_readiness_comes_and_goes_by_its_thresholds() -> None:
    container = {"readinessProbe": probe("r", successThreshold=2, failureThreshold=2)}
    told = Told(r=[None, None, "no", None, "no", "no"])
    assert await follow(container, told) == [
        "readiness: nothing",
        "readiness: note ready",
        "readiness: nothing",
        "readiness: nothing",
        "readiness: nothing",
        "readiness: note unready",
    ]


@pytest.mark.parametrize("kind", ["startupProbe", "readinessProbe"])
async def test_an_answer_that_comes_with_the_end_does_not_make_it_go_on(kind: str) -> None:
    """It swallows the cancellation, as a timeout that expires at the same moment does."""

    class Swallowing:
        async def ask(self, *_: object) -> str | None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return None
            return "too late"

    container = {kind: probe("a", periodSeconds=0.01), "livenessProbe": probe("l")}
    task = asyncio.create_task(ContainerProbes(container, Swallowing(), lambda _: None).run())
    await asyncio.sleep(0.02)
    task.cancel()
    await asyncio.wait({task}, timeout=2)
    assert task.cancelled()


async def test_a_container_without_probes_is_asked_nothing() -> None:
    assert await follow({}, Told()) == []


def test_thresholds_count_answers_in_a_row() -> None:
    counter = ProbeCounter(success_threshold=2, failure_threshold=3)
    answers = [True, False, True, True, False, False, True, False, False, False]
    assert [counter.observe(answer) for answer in answers] == [
        None, None, None, True, None, None, None, None, None, False,
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ProbeKind)
def test_too_few_answers_lead_to_nothing(kind: ProbeKind) -> None:
    assert decide(kind, None) is Consequence.NOTHING
