"""The whole operator on an API server that fails in every way that a real one does: in the end all is well.

`make test-long` runs many more scripts of faults. `faulty/` has the server and its faults.
"""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from itertools import starmap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace_operator.kube.kinds import CHILDREN, INFERENCE_SERVICE, POD, SERVICE, WATCHED
from testing.polling import wait_until_async
from testing.world import KEY
from tests.operator.faulty.running import Running, hurried_operators, run_operator
from tests.operator.faulty.script import Fault

pytestmark = pytest.mark.slow
NUM_OPERATORS = 9
"""Side by side. Of many more each would get so little CPU that one which never rests seems to."""
CONVERGED_SECONDS = 25.0
LOOK_SECONDS = 0.03
QUIET_SECONDS = 0.4
MOST_REQUESTS = 8
"""In that time, of an operator that has nothing to do: two for its Lease, and watches that begin anew."""
REST_SECONDS = 8.0
SERVICES, DEPLOYMENTS = INFERENCE_SERVICE.plural, "deployments"
WATCHES = (SERVICES, DEPLOYMENTS)
"""One of Kopf's and one of ours."""
HELP = {
    "list": Fault.EVENT_EXPIRED,
    "page": Fault.EVENT_EXPIRED,
    "watch": Fault.EVENT_CUT,
    "get": Fault.WRITE_CONFLICT,
}
"""What must go wrong first for a request of a stage to come."""


async def converge(running: Running) -> None:
    """Wait until everything is as the spec wants it, and nothing but the Lease's renewal goes on."""
    trouble = ""
    try:
        async with asyncio.timeout(CONVERGED_SECONDS):
            while trouble := running.find_trouble():  # noqa: ASYNC110  a cache tells nobody
                await asyncio.sleep(LOOK_SECONDS)
    except TimeoutError as error:
        raise AssertionError(f"not converged: {trouble}; happened: {running.script.happened}") from error


async def check_quiet(running: Running) -> None:
    """An operator that has nothing to do comes to rest, and asks for nothing.

    Not at once: after a fault Kopf asks anew which kinds there are, a while after all has converged.
    """
    requests, before = running.server.requests, 0
    for _ in range(round(REST_SECONDS / QUIET_SECONDS)):
        before = len(requests)
        await asyncio.sleep(QUIET_SECONDS)
        if len(requests) - before <= MOST_REQUESTS:
            break
    else:
        raise AssertionError(f"no rest in {REST_SECONDS:g} s: {requests[before:]}")
    assert running.find_trouble() == ""


async def check_sight(running: Running) -> None:
    """An operator that got over its faults sees whatever changes, by its watches alone."""
    running.world.edit(engine={"maxSequences": 16})
    await converge(running)
    for kind in CHILDREN:
        for child in running.world.objects(kind.kind):
            running.remove_child(child["metadata"]["name"])
    await converge(running)


def find_targets(fault: Fault) -> tuple[str, ...]:
    """Return the collections at which a fault is tried."""
    pages = (SERVICES, SERVICE.plural)
    targets = {"lease": ("leases",), "page": pages, "get": (DEPLOYMENTS,), "deletion": (DEPLOYMENTS,)}
    return targets.get(fault.stage, WATCHES)


async def get_over(fault: Fault, folder: Path) -> None:
    """Let a fault happen at each of its targets, with an edit. Raises AssertionError where trouble stays."""
    async with run_operator(folder) as running:
        await wait_until_async("the services are watched", running.is_watching)
        await converge(running)
        for plural in find_targets(fault):
            if fault.stage in HELP:
                running.script.add(HELP[fault.stage], plural)
            running.script.add(fault, plural)
        running.world.edit(engine={"maxSequences": 4})
        if fault.stage == "page":
            running.touch(SERVICE, "chat")
        await wait_until_async(f"{fault} happened", lambda: not running.script.pending)
        if fault is Fault.DELETION_HIDDEN:
            await asyncio.sleep(QUIET_SECONDS)
            running.relist.set()
        await converge(running)
        await check_quiet(running)
        await check_sight(running)


LIST_FAULTS = tuple(fault for fault in Fault if fault.stage in ("list", "page"))


async def get_over_failing_pages(folder: Path) -> None:
    """Let each list of the services fail, and an edit be told by no watch: its history has gone."""
    async with run_operator(folder) as running:
        await wait_until_async("the services are watched", running.is_watching)
        await converge(running)
        running.script.add(Fault.EVENT_EXPIRED, SERVICES)
        for fault in (*LIST_FAULTS, Fault.PAGE_EXPIRED):
            running.script.add(fault, SERVICES)
        running.world.edit(engine={"maxSequences": 4})
        await wait_until_async("all of them happened", lambda: not running.script.pending)
        await converge(running)
        await check_quiet(running)
        await check_sight(running)


FAILING_PAGES = "failing pages"
LIVES = {FAILING_PAGES: get_over_failing_pages, **{fault: partial(get_over, fault) for fault in Fault}}
Ends = Mapping[str, BaseException | None]
"""What each life of an operator has come to."""


async def live_all(folder: Path) -> Ends:
    """Live all lives, side by side."""
    places = asyncio.Semaphore(NUM_OPERATORS)

    async def live(number: int, life: Callable[[Path], Awaitable[None]]) -> None:
        own = folder / str(number)
        own.mkdir()
        async with places:
            await life(own)

    ends = await asyncio.gather(*starmap(live, enumerate(LIVES.values())), return_exceptions=True)
    return dict(zip(LIVES, ends, strict=True))


@pytest.fixture(scope="module", autouse=True)
def hurried() -> Iterator[None]:
    with hurried_operators():
        yield


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> Ends:
    return asyncio.run(live_all(tmp_path_factory.mktemp("faults")))


@pytest.mark.parametrize("fault", Fault)
def test_the_operator_gets_over_each_fault(fault: Fault, ends: Ends) -> None:
    check_end(ends[fault])


def test_kopf_lists_the_services_at_last_however_often_its_pages_fail(ends: Ends) -> None:
    """Only a whole list tells it of the edit. The service is on page 2."""
    check_end(ends[FAILING_PAGES])


def check_end(error: BaseException | None) -> None:
    if error is not None:
        raise error


FAULT = st.tuples(st.sampled_from(list(Fault)), st.sampled_from(["", *(kind.plural for kind in WATCHED)]))
STEP = st.one_of(
    st.tuples(st.just("edit"), st.sampled_from([4, 8])),
    st.tuples(st.just("scale"), st.integers(1, 3)),
    st.tuples(st.just("delete"), st.integers(0, 9)),
    st.tuples(st.just("evict"), st.integers(0, 9)),
    st.tuples(st.just("wait"), st.integers(1, 20)),
)
SCRIPTS = st.tuples(st.lists(FAULT, max_size=6), st.lists(st.one_of(STEP, FAULT), min_size=4, max_size=16))


async def run_script(first: list[tuple[Fault, str]], steps: list[tuple[Any, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with run_operator(Path(folder), first) as running:
            for name, value in steps:
                if isinstance(name, Fault):
                    running.script.add(name, value)
                else:
                    await take(running, name, value)
            await asyncio.sleep(QUIET_SECONDS)
            running.script.clear()
            running.relist.set()
            await converge(running)
            await check_quiet(running)
            await check_sight(running)


async def take(running: Running, name: str, value: int) -> None:
    """Let something happen that is no fault of the API server."""
    world = running.world
    if name == "edit":
        world.edit(engine={"maxSequences": value})
    elif name == "scale":
        world.edit(replicas=value)
    elif name == "delete":
        children = [child for kind in CHILDREN for child in world.objects(kind.kind)]
        if children:
            running.remove_child(children[value % len(children)]["metadata"]["name"])
    elif name == "evict" and (pods := world.pods()):
        world.cluster.remove(POD, KEY.namespace, pods[value % len(pods)]["metadata"]["name"])
    else:
        await asyncio.sleep(value / 40)


@settings.get_profile("fast-slowest")
@given(SCRIPTS)
def test_the_operator_gets_over_scripts_of_faults(script: tuple[Any, Any]) -> None:
    asyncio.run(run_script(*script))


@pytest.mark.long
@settings.get_profile("long-slowest")
@given(SCRIPTS)
def test_the_operator_gets_over_many_scripts_of_faults(script: tuple[Any, Any]) -> None:
    asyncio.run(run_script(*script))
