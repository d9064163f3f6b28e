"""Operators that are killed or stopped at each of their writes: the end is what it is without that.

Kubernetes' own controllers and scheduler run, with pods that are only said to be Ready.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from e2e.api_proxy import ApiProxy, Moment
from e2e.changes import (
    ABORT,
    CORDON,
    DOWN,
    FILL,
    LOOK,
    NEW,
    PROMOTE,
    RESTORE,
    ROLLBACK,
    SETTLE_SECONDS,
    UP,
    WAKE,
    ZERO,
    Change,
    prepare,
)
from e2e.cluster.errors import PartFailedError
from e2e.cluster.local_cluster import LocalCluster
from e2e.instant_kubelet import InstantKubelet, InstantNode
from e2e.write_faults import Stage, run_side_by_side, wait_until_lease_is_over
from testing.polling import wait_until

ROOT = Path(__file__).resolve().parents[1]
QUIET_SECONDS = 3.0
"""Longer than one write waits for the next, unless a pod has to leave first."""


@pytest.fixture(scope="module")
def cluster(make_state_folder: Callable[[str], Path]) -> Iterator[LocalCluster]:
    """A control plane whose Nodes have no heartbeat: one of all services, and two of each that is to move."""
    local = LocalCluster(make_state_folder("writes"), nodes=())
    own = (InstantNode(f"{name}-{side}", name) for name in CORDON.services for side in ("a", "b"))
    try:
        local.start()
        local.kill_part("kube-controller-manager")
        local.start_part("kube-controller-manager", "--controllers=-node-lifecycle-controller")
        local.kubectl("apply", "--server-side", "-f", str(ROOT / "crds"))
        established = ("wait", "--for=condition=Established", "crd/inferenceservices.millrace.dev")
        wait_until("the definition", lambda: local.kubectl(*established), 60, outlives=(PartFailedError,))
        with InstantKubelet(local, (InstantNode("instant"), *own)):
            yield local
    finally:
        local.kill_part("kube-apiserver")  # it would wait for those who watch
        local.stop()


@pytest.mark.parametrize(
    "changes",
    [
        (DOWN, PROMOTE),  # they have marks, Events, and what was learned, too
        *(
            pytest.param(changes, marks=pytest.mark.long)
            for changes in ((UP, RESTORE, ABORT), (LOOK, FILL), (ZERO, WAKE), (CORDON, ROLLBACK))
        ),
    ],
)
def test_a_kill_after_any_write_changes_nothing_of_the_end(
    cluster: LocalCluster, tmp_path: Path, changes: tuple[Change, ...]
) -> None:
    """What a kill before a write leaves is what a kill after the write before it leaves."""
    run_side_by_side(partial(run_kills, Stage(cluster, one.name, tmp_path), one) for one in changes)


def run_kills(stage: Stage, change: Change) -> None:
    """Make a change undisturbed, and again with a kill after its first write, after its second, and so on."""
    _, *names = change.services
    with stage.open_proxy() as proxy:
        with stage.start(proxy, "first") as operator:
            operator.wait_leading()
            prepare(stage, change, change.services)
            make_undisturbed(stage, proxy, change)
        for number, name in enumerate(names, 1):
            stage.free_lease()
            with stage.start(proxy, name) as operator:
                operator.wait_leading()
                proxy.strike(name, number, Moment.LANDED, operator.kill)
                change.act(stage, name)
                operator.wait_ended()
                assert proxy.has_struck, f"{name} ended by itself"
        stage.free_lease()
        with stage.start(proxy, "last") as operator:
            operator.wait_leading()
            for name in names:
                wait_same(stage, change, name)


def make_undisturbed(stage: Stage, proxy: ApiProxy, change: Change) -> None:
    """Make a change of its model, and see that it takes as many writes as it says."""
    proxy.wait_until_quiet(QUIET_SECONDS)
    before = len(proxy.writes)
    change.act(stage, change.model)
    wait_until("the writes", lambda: len(proxy.writes) >= before + change.num_writes)
    proxy.wait_until_quiet(QUIET_SECONDS)


def wait_same(stage: Stage, change: Change, name: str) -> None:
    """Wait until a service is as its model, which nobody disturbed."""

    def describe(one: str) -> str:
        return stage.describe(one, hides_revision=change.has_own_nodes)

    try:
        wait_until(name, lambda: describe(name) == describe(change.model), SETTLE_SECONDS)
    except AssertionError:
        assert describe(name) == describe(change.model)


class Late(NamedTuple):
    """A change of which some writes arrive after another leader has made it, each of another service."""

    change: Change
    numbers: range
    """Of the writes, from 1 on. Those of what was learned don't count: they come now and then."""
    learns: bool = False
    """Whether what was learned of one more service arrives late too."""

    @property
    def writes(self) -> Mapping[str, tuple[int, Callable[[str], bool]]]:
        """By service, the number of the write that is late, and which writes count."""
        learned = {f"{self.change.name}-learned": (1, is_learned)} if self.learns else {}
        return learned | {self.change.name_service(number): (number, is_planned) for number in self.numbers}

    @property
    def services(self) -> tuple[str, ...]:
        """Names of the change's model, and of the services that have late writes."""
        return (self.change.model, *self.writes)


def is_learned(write: str) -> bool:
    return write.startswith("MERGE ") and "/controllerrevisions/" in write


def is_planned(write: str) -> bool:
    return not is_learned(write)


LATE = (
    Late(NEW, range(1, 8)),
    Late(UP, range(1, 6), learns=True),
    Late(DOWN._replace(name="mark", num_writes=3), range(2, 4)),
    Late(ABORT, range(1, 8)),
    Late(LOOK, range(1, 9)),
)
"""Between them they have every kind of write: marks, Events, Jobs, deletions, and what was learned, too."""
MORE_LATE = (
    Late(DOWN, range(1, 9)),
    Late(PROMOTE, range(1, 9)),
    Late(RESTORE, range(1, 7)),
    Late(FILL, range(1, 12)),
)
LATE_AT_REST_AND_LEAVING = (
    Late(ZERO, range(1, 6)),
    Late(WAKE, range(1, 5)),
    Late(CORDON, range(1, 9)),
    Late(ROLLBACK, range(5, 10)),
)
"""Of a rollback those from the deadline on: a Deployment that comes late is made again, and then deleted."""


@pytest.mark.parametrize(
    "lates",
    [
        LATE,
        *(pytest.param(lates, marks=pytest.mark.long) for lates in (MORE_LATE, LATE_AT_REST_AND_LEAVING)),
    ],
)
def test_a_leader_that_stands_still_at_any_write_changes_nothing_of_the_end(
    cluster: LocalCluster, tmp_path: Path, lates: tuple[Late, ...]
) -> None:
    stages = [(Stage(cluster, f"late-{one.change.name}", tmp_path), one) for one in lates]
    run_side_by_side(partial(stand_still, *one) for one in stages)


def stand_still(stage: Stage, late: Late) -> None:
    """Stop a leader's clock in the middle of its writes. Another leads, and they arrive after that.

    Each write is of another service, so that one Lease is taken for all of them.
    """
    with ExitStack() as stack:
        proxy, others = (stack.enter_context(stage.open_proxy()) for _ in range(2))
        first = stack.enter_context(stage.start(proxy, "a")).wait_leading()
        prepare(stage, late.change, late.services)
        make_undisturbed(stage, proxy, late.change)
        second = stack.enter_context(stage.start(others, "b"))
        hold_writes(stage, proxy, late)
        first.pause()
        paused_at = time.monotonic()
        stage.free_lease()
        second.wait_leading()
        wait_made(stage, others, late)
        before, versions = len(proxy.answers), list_versions(stage, late)
        wait_until_lease_is_over(paused_at)
        proxy.release()
        wait_until("the late writes", lambda: len(proxy.answers) == before + len(late.writes))
        first.resume()
        wait_until("its end of leading", lambda: "no longer leading" in first.text)
        time.sleep(QUIET_SECONDS)
        arrived = list(zip(proxy.writes, proxy.answers, strict=True))[before:]
        assert [one for one in arrived if not is_harmless(*one)] == []
        wait_until("no trace of them", lambda: list_versions(stage, late) == versions)
        assert first.is_running


def hold_writes(stage: Stage, proxy: ApiProxy, late: Late) -> None:
    """Make the change of all services, until each has the write under way that is to be late."""
    for name, (number, counts) in late.writes.items():
        proxy.strike(name, number, Moment.HELD, counts=counts)
    for name in late.writes:
        late.change.act(stage, name)
    try:
        wait_until("all of those writes are under way", lambda: proxy.has_struck)
    except AssertionError:
        assert proxy.awaited == []


def wait_made(stage: Stage, proxy: ApiProxy, late: Late) -> None:
    """Wait until the change is made of all services, and nothing goes on."""
    wait_until(f"{late.change.model} settles", lambda: not stage.is_leaving(late.change.model))
    for name in late.writes:
        wait_same(stage, late.change, name)
    proxy.wait_until_quiet(QUIET_SECONDS)


def list_versions(stage: Stage, late: Late) -> list[list[str]]:
    return [stage.list_versions(name) for name in late.services]


def is_harmless(write: str, answer: int) -> bool:
    """Whether a late write changed nothing that stays.

    It found another version than it names, or nothing any more. Else it is an Event, which tells once more
    what has happened; or it makes a Job that the other leader has done with, and deletes once more.
    """
    is_of_job = answer == 201 and "/jobs/" in write
    return answer in (404, 409) or "/events" in write or is_of_job
