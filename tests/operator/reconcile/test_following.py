"""A branch that is followed: its source is asked again, and what it has then is rolled out as by an edit."""

import copy
import itertools
import json
from typing import Any

import pytest

from millrace_operator.cluster.kinds import CONTROLLER_REVISION, POD, Obj
from millrace_operator.reconcile.jobs import LOST_SECONDS
from millrace_operator.reconcile.snapshot import Demand, Fetched
from millrace_operator.resources.ask_times import find_next_ask
from millrace_operator.resources.conditions import parse_time, render_time
from testing.world import BEGAN, KEY, World, crash_status, resolver_status
from tests.operator.reconcile.test_filling import CACHED, get_filler, make_claim
from tests.operator.reconcile.test_fitting import FACTS
from tests.operator.reconcile.test_resolution import EXTERNAL, FIRST, GATED, MAIN, SECOND, fetched

FOLLOWED: dict[str, Any] = {**MAIN, "follow": "Branch"}
THIRD = "3" * 40
PERIOD = 3600.0
WHOLE_PERIOD = 1.1 * PERIOD + 1
"""However much later than others the service asks."""


async def make_followed(model: dict[str, Any] | None = None, **spec: Any) -> World:
    """A service that follows a branch, and serves what that had at first."""
    world = World(**{"model": model or FOLLOWED, "scaling": EXTERNAL, "replicas": 2, **spec})
    world.model_revision = FIRST
    await world.settle()
    return world


async def move_on(world: World, revision: str) -> None:
    """Let the branch move on, the next ask be due, and all come to rest."""
    world.model_revision = revision
    await pass_period(world)


async def pass_period(world: World) -> None:
    world.now += WHOLE_PERIOD
    await world.settle()


def followed(world: World) -> dict[str, Any]:
    found: dict[str, Any] = world.status["model"].get("followed", {})
    return found


def served(world: World) -> list[str]:
    """Which revision of the model each Deployment's pods fetch."""
    return [words.partition("--revision ")[2].split()[0] for words in fetched(world)]


def find_asker(world: World) -> Obj | None:
    return next((job for job in world.objects("Job") if job["metadata"]["name"].endswith("-w")), None)


def get_asker(world: World) -> Obj:
    job = find_asker(world)
    assert job is not None
    return job


def events(world: World, reason: str) -> list[str]:
    """The words of each Event, as often as it was told."""
    found = [one for one in world.cluster.events if one["reason"] == reason]
    return [one["message"] for one in found for _ in range(one["count"])]


def condition(world: World, name: str) -> tuple[str, str]:
    found = world.condition(name)
    return found["status"], found["reason"]


async def refuse_ask(world: World) -> None:
    """Let the next ask be due, and its source refuse."""
    world.model_revision = None
    await pass_period(world)
    uid = get_asker(world)["metadata"]["uid"]
    owned = [one for one in world.objects("Pod") if one["metadata"].get("ownerReferences")]
    (pod,) = [one for one in owned if one["metadata"]["ownerReferences"][0]["uid"] == uid]
    world.cluster.put({**pod, "status": resolver_status(GATED, code=1)})
    await world.settle()


async def begin_bad(world: World) -> str:
    """Let the branch move on to something that never gets ready. Return the Deployment that serves on."""
    (serving,) = world.deployments()
    world.model_revision = SECOND
    world.now += WHOLE_PERIOD
    await world.reconcile_until_quiet()
    while (bad := world.status["updateRevision"]) == serving:
        world.run_controllers()
        await world.reconcile_until_quiet()
    world.broken[bad] = crash_status()
    await world.settle()
    return serving


async def give_up(world: World) -> None:
    """Let the branch move on to something that never gets ready, and let the service give it up."""
    serving = await begin_bad(world)
    world.now += 2400
    await world.settle()
    assert condition(world, "Degraded") == ("True", "RolledBack")
    assert world.deployments() == {serving: 2}


async def test_the_first_answer_counts_and_the_next_ask_is_a_period_later() -> None:
    world = await make_followed()
    assert followed(world) == {"revision": FIRST, "askedAt": render_time(BEGAN)}
    assert not world.objects("Job")
    due = find_next_ask(BEGAN, PERIOD, world.service["metadata"]["uid"])
    assert PERIOD <= due - BEGAN <= 1.1 * PERIOD
    assert (await world.reconcile()).look_again == due - BEGAN + 1
    world.now = due - 1
    await world.settle()
    assert not world.objects("Job")


async def test_a_branch_that_stays_changes_nothing_but_when_it_was_asked() -> None:
    world = await make_followed()
    before = copy.deepcopy((world.deployments(), world.objects("ControllerRevision"), world.pods()))
    world.model_revision = None
    await pass_period(world)
    assert "--resolve" in get_asker(world)["spec"]["template"]["spec"]["containers"][0]["args"]
    assert condition(world, "UpToDate")[0] == "True"
    world.model_revision = FIRST
    world.cluster.writes.clear()
    await world.settle()
    assert followed(world) == {"revision": FIRST, "askedAt": render_time(world.now)}
    assert (world.deployments(), world.objects("ControllerRevision"), world.pods()) == before
    assert not world.objects("Job")


async def test_what_a_branch_has_later_is_rolled_out_and_the_old_serves_until_then() -> None:
    world = await make_followed()
    (old,) = world.deployments()
    world.model_revision = SECOND
    world.now += WHOLE_PERIOD
    least = 2
    while served(world) != [SECOND]:
        await world.reconcile_until_quiet()
        least = min(least, world.status["readyReplicas"])
        assert world.run_controllers()
    await world.settle()
    (new,) = world.deployments()
    assert least == 2, "old replicas go only when new ones serve"
    assert new != old
    assert world.status["currentRevision"] == world.status["updateRevision"] == new
    assert world.status["model"]["resolvedRevision"] == SECOND
    assert followed(world)["revision"] == SECOND
    assert not world.objects("Job")
    assert events(world, "BranchMoved") == [f"the model's source has revision {SECOND} now, and had {FIRST}"]
    assert "model" in world.service["spec"]
    assert world.service["spec"]["model"] == FOLLOWED, "nothing is written to spec"


async def test_what_was_found_is_asked_for_by_its_name() -> None:
    """The branch may move on between the two Jobs."""
    world = await make_followed()
    world.model_revision = SECOND
    world.now += WHOLE_PERIOD
    await world.reconcile_until_quiet()
    world.run_controllers()
    world.model_revision = None
    await world.settle()
    (job,) = world.objects("Job")
    args = job["spec"]["template"]["spec"]["containers"][0]["args"]
    assert args[-2:] == ["--revision", SECOND]
    assert condition(world, "Ready") == ("True", "Serving")


async def test_a_branch_that_comes_back_has_its_old_revision_and_no_third_one() -> None:
    world = await make_followed()
    (old,) = world.deployments()
    await move_on(world, SECOND)
    await move_on(world, FIRST)
    assert list(world.deployments()) == [old]
    assert len(world.objects("ControllerRevision")) == 2


async def test_a_bad_one_is_rolled_back_and_not_tried_again_until_the_branch_moves_on() -> None:
    world = await make_followed()
    (old,) = world.deployments()
    await give_up(world)
    for _ in range(3):
        await pass_period(world)
        assert world.deployments() == {old: 2}
        assert followed(world) == {"revision": SECOND, "askedAt": render_time(world.now)}
    assert len(events(world, "RolledBack")) == 1
    await move_on(world, THIRD)
    assert served(world) == [THIRD]
    assert condition(world, "UpToDate")[0] == "True"


async def test_a_source_that_is_away_is_told_once_and_what_serves_goes_on() -> None:
    world = await make_followed()
    before, last = world.deployments(), followed(world)
    await refuse_ask(world)
    assert "acme/chat is gated" in followed(world)["message"]
    assert followed(world) | last == followed(world)
    for name, status in (
        ("Ready", "True"),
        ("ModelReady", "True"),
        ("Degraded", "False"),
        ("UpToDate", "True"),
    ):
        assert condition(world, name)[0] == status, name
    job = get_asker(world)
    world.restart_operator()
    for _ in range(3):
        await pass_period(world)
    assert get_asker(world)["metadata"]["uid"] == job["metadata"]["uid"], "it tries on by itself"
    assert len(world.objects("Job")) == 1
    (words,) = events(world, "FollowFailed")
    assert "acme/chat is gated" in words
    assert world.deployments() == before

    await move_on(world, SECOND)
    assert "message" not in followed(world)
    assert served(world) == [SECOND]


async def test_between_two_tries_the_words_stay() -> None:
    world = await make_followed()
    await refuse_ask(world)
    (pod,) = [one for one in world.objects("Pod") if one not in world.pods()]
    world.cluster.put({**pod, "status": {"phase": "Running"}})
    await world.settle()
    assert "acme/chat is gated" in followed(world)["message"]
    world.cluster.put({**pod, "status": resolver_status(GATED, code=1)})
    await world.settle()
    assert len(events(world, "FollowFailed")) == 1


async def test_a_job_without_a_pod_is_told_after_the_deadline() -> None:
    world = await make_followed()
    world.quota = 2
    await pass_period(world)
    assert "message" not in followed(world)
    assert (await world.reconcile()).look_again == 1801
    world.now += 1801
    await world.settle()
    assert "has got no farther" in followed(world)["message"]
    assert condition(world, "Degraded")[0] == "False"


async def test_an_edit_takes_the_job_away_and_asks_for_itself() -> None:
    world = await make_followed()
    await refuse_ask(world)
    asker = get_asker(world)["metadata"]["name"]
    world.edit(engine={"maxSequences": 4})
    await world.reconcile_until_quiet()
    assert asker not in [job["metadata"]["name"] for job in world.objects("Job")]
    assert followed(world) == {}
    world.model_revision = SECOND
    await world.settle()
    assert served(world) == [SECOND]
    assert followed(world) == {"revision": SECOND, "askedAt": render_time(world.now)}
    assert not world.objects("Job")


async def test_an_edit_that_makes_no_revision_leaves_the_job_alone() -> None:
    world = await make_followed()
    world.model_revision = None
    await pass_period(world)
    uid = get_asker(world)["metadata"]["uid"]
    world.edit(replicas=3)
    await world.settle()
    assert get_asker(world)["metadata"]["uid"] == uid


async def test_to_begin_to_follow_rolls_nothing_out_by_itself_and_asks_at_once() -> None:
    world = await make_followed(MAIN)
    before = world.deployments()
    assert "followed" not in world.status["model"]
    await pass_period(world)
    assert not world.objects("Job")
    world.edit(model=FOLLOWED)
    await world.settle()
    assert world.deployments() == before
    assert followed(world) == {"revision": FIRST, "askedAt": render_time(world.now)}


async def test_to_stop_to_follow_keeps_what_serves() -> None:
    world = await make_followed()
    await move_on(world, SECOND)
    before, pods = world.deployments(), world.pods()
    world.edit(model=MAIN)
    await world.settle()
    await move_on(world, THIRD)
    world.restart_operator()
    await world.settle()
    assert (world.deployments(), world.pods()) == (before, pods)
    assert world.status["model"]["resolvedRevision"] == SECOND
    assert "followed" not in world.status["model"]
    assert not world.objects("Job")

    world.edit(model=FOLLOWED)
    await world.settle()
    assert served(world) == [THIRD]


async def test_to_stop_to_follow_a_bad_one_keeps_what_serves_and_is_healthy() -> None:
    world = await make_followed()
    (old,) = world.deployments()
    await give_up(world)
    world.edit(model=MAIN)
    await world.settle()
    assert world.deployments() == {old: 2}
    assert condition(world, "UpToDate")[0] == "True"


async def test_another_leader_goes_on_with_each_step() -> None:
    world = await make_followed()
    world.model_revision = SECOND
    world.now += WHOLE_PERIOD
    for _ in range(40):
        await world.reconcile()
        world.restart_operator()
        world.run_controllers()
    await world.settle()
    assert served(world) == [SECOND]
    assert len(world.objects("ControllerRevision")) == 2
    assert not world.objects("Job")
    assert len(events(world, "BranchMoved")) == 1


@pytest.mark.parametrize("lost", ["followed", "all"])
async def test_a_status_that_is_lost_asks_again_and_rolls_nothing_out(lost: str) -> None:
    world = await make_followed()
    await move_on(world, SECOND)
    before, pods = world.deployments(), world.pods()
    model = {name: value for name, value in world.status["model"].items() if name != "followed"}
    status = {} if lost == "all" else {**world.status, "model": model}
    world.cluster.put({**world.service, "status": status})
    await world.settle()
    assert (world.deployments(), world.pods()) == (before, pods)
    assert followed(world) == {"revision": SECOND, "askedAt": render_time(world.now)}
    assert world.status["model"]["resolvedRevision"] == SECOND


async def test_a_status_that_is_lost_after_a_rollback_stays_with_what_serves() -> None:
    world = await make_followed()
    (old,) = world.deployments()
    await give_up(world)
    world.model_revision = None
    world.cluster.put({**world.service, "status": {}})
    await world.settle()
    assert world.deployments() == {old: 2}
    assert condition(world, "Ready") == ("True", "Serving")


async def test_a_resting_service_is_asked_when_it_has_woken() -> None:
    scaling = {"mode": "Automatic", "minReplicas": 0, "maxReplicas": 2, "scaleToZeroAfter": "10m"}
    world = World(model=FOLLOWED, scaling=scaling)
    world.model_revision, world.demand = FIRST, Demand(1, None)
    await world.settle()
    world.demand = Demand(0, world.now)
    world.now += 601
    await world.settle()
    assert world.status["scaling"]["desiredReplicas"] == 0
    await move_on(world, SECOND)
    assert not world.objects("Job")
    assert (await world.reconcile()).look_again is None

    world.demand = Demand(1, None)
    await world.reconcile_until_quiet()
    assert not world.objects("Job"), "who waits is answered first"
    await world.settle()
    assert served(world) == [SECOND]


async def test_a_job_that_asks_goes_when_the_service_rests() -> None:
    scaling = {"mode": "Automatic", "minReplicas": 0, "maxReplicas": 2, "scaleToZeroAfter": "3h"}
    world = World(model=FOLLOWED, scaling=scaling)
    world.model_revision, world.demand = FIRST, Demand(0, world.now)
    await world.settle()
    world.demand, world.model_revision = Demand(0, world.now), None
    await pass_period(world)
    assert find_asker(world) is not None
    world.now += 3 * 3600
    await world.settle()
    assert world.status["scaling"]["desiredReplicas"] == 0
    assert not world.objects("Job")


async def make_filling() -> World:
    """A service whose branch has moved on, to a model that is on its way into the claim."""
    world = World(model={**CACHED, "follow": "Branch"}, scaling=EXTERNAL, replicas=2)
    world.cluster.put(make_claim("ReadWriteMany"))
    world.model_revision = FIRST
    await world.settle()
    world.is_filled = False
    await move_on(world, SECOND)
    assert condition(world, "ModelReady") == ("False", "Fetching")
    assert condition(world, "Ready") == ("True", "Serving")
    return world


async def test_a_claim_is_filled_first_and_a_fetch_that_gets_on_is_not_given_up() -> None:
    world = await make_filling()
    filler = get_filler(world)
    world.model_revision = THIRD
    for _ in range(12):
        world.now += 600
        pods = [one["metadata"]["name"] for one in world.objects("Pod")]
        world.fetched = {name: Fetched(2**30, 2**20, 2**20, world.now) for name in pods}
        await world.settle()
    assert get_filler(world)["metadata"]["uid"] == filler["metadata"]["uid"]
    assert find_asker(world) is None
    world.is_filled = True
    await world.settle()
    await world.settle()
    assert world.status["model"]["resolvedRevision"] == THIRD, "it was due meanwhile"
    assert condition(world, "UpToDate")[0] == "True"


async def test_a_fetch_that_gets_nowhere_is_given_up_for_a_later_revision() -> None:
    """Such as of a bucket that was written meanwhile: it has the former one no more."""
    world = await make_filling()
    assert followed(world)["revision"] == SECOND
    world.is_filled = False
    await move_on(world, THIRD)
    assert followed(world)["revision"] == THIRD
    (container,) = get_filler(world)["spec"]["template"]["spec"]["containers"]
    assert THIRD in container["args"]
    assert len(world.objects("Job")) == 2
    world.is_filled = True
    await world.settle()
    assert world.status["model"]["resolvedRevision"] == THIRD


async def test_a_model_that_does_not_fit_is_refused_until_the_branch_moves_on() -> None:
    world = await make_followed(resources={"limits": {"memory": "8Gi"}})
    before = world.deployments()
    world.model_facts = json.loads(FACTS.to_json())
    await move_on(world, SECOND)
    for _ in range(3):
        await pass_period(world)
        assert condition(world, "ModelReady") == ("False", "DoesNotFit")
        assert condition(world, "Ready") == ("True", "Serving")
        assert world.deployments() == before
        assert followed(world) == {"revision": SECOND, "askedAt": render_time(world.now)}
    assert events(world, "DoesNotFit") == events(world, "DoesNotFit")[:1], "it is told once"
    world.model_facts = None
    await move_on(world, THIRD)
    assert served(world) == [THIRD]


async def test_ten_services_do_not_ask_at_the_same_moment() -> None:
    times = sorted(find_next_ask(BEGAN, PERIOD, f"uid-{number}") for number in range(10))
    assert min(later - former for former, later in itertools.pairwise(times)) > 1
    assert all(PERIOD <= time - BEGAN <= 1.1 * PERIOD for time in times)


async def test_a_service_that_is_idle_is_looked_at_once_a_period() -> None:
    world = await make_followed()
    world.model_revision = FIRST
    num_writes = len(world.cluster.writes)
    end = world.now + 10 * PERIOD
    num_looks = 0
    while world.now < end:
        await world.settle()
        wait = (await world.reconcile()).look_again
        assert wait is not None
        assert wait > 60
        world.now += wait
        num_looks += 1
    assert num_looks <= 10
    assert len(world.cluster.writes) - num_writes <= 10 * 5, "a Job, its end, status"


async def test_a_job_that_left_no_word_is_made_anew() -> None:
    world = await make_followed()
    world.model_revision = SECOND
    world.now += WHOLE_PERIOD
    await world.reconcile_until_quiet()
    world.run_controllers()
    job = get_asker(world)
    (pod,) = [
        one for one in world.objects("Pod") if one not in world.pods() and "chat" in one["metadata"]["name"]
    ]
    world.cluster.remove(POD, KEY.namespace, pod["metadata"]["name"])
    await world.reconcile_until_quiet()
    assert get_asker(world) == job
    assert (await world.reconcile()).look_again == LOST_SECONDS + 1
    world.now += LOST_SECONDS + 1
    await world.settle()
    assert served(world) == [SECOND]


async def test_an_edit_and_its_undoing_end_at_what_the_branch_has() -> None:
    world = await make_followed()
    await move_on(world, SECOND)
    spec = world.service["spec"]
    world.edit(engine={"maxSequences": 4})
    await world.settle()
    world.model_revision = THIRD
    world.edit(engine={})
    await world.settle()
    assert world.service["spec"] == {**spec, "engine": {}}
    assert served(world) == [THIRD]


async def test_a_record_that_was_deleted_by_hand_changes_nothing() -> None:
    world = await make_followed()
    await move_on(world, SECOND)
    before = world.deployments()
    name = f"chat-{world.status['currentRevision']}"
    world.cluster.remove(CONTROLLER_REVISION, KEY.namespace, name)
    await world.settle()
    assert world.deployments() == before
    assert parse_time(followed(world)["askedAt"]) is not None


async def test_a_canary_is_tried_and_nobody_asks_until_it_is_promoted() -> None:
    world = await make_followed(replicas=3, rollout={"canary": {"duration": "3h"}})
    (old,) = world.deployments()
    await move_on(world, SECOND)
    assert condition(world, "Progressing") == ("True", "Canary")
    assert world.deployments()[old] == 2
    await move_on(world, THIRD)
    assert find_asker(world) is None
    assert followed(world)["revision"] == SECOND
    world.now += 3 * PERIOD
    await world.settle()
    assert followed(world)["revision"] == THIRD, "it was due since"
    assert condition(world, "Progressing") == ("True", "Canary")


async def test_an_edit_back_to_an_older_spec_asks_again_at_once() -> None:
    world = await make_followed()
    await move_on(world, SECOND)
    world.edit(engine={"maxSequences": 4})
    await world.settle()
    world.edit(engine={})
    await world.reconcile()
    assert followed(world) == {}, "what was said then was said of another spec"
    world.model_revision = THIRD
    await world.settle()
    assert followed(world) == {"revision": THIRD, "askedAt": render_time(world.now)}


async def test_what_is_at_hand_is_never_asked() -> None:
    """An API server with older rules may let it pass."""
    world = World(model={"uri": "pvc://models/chat", "follow": "Branch"}, scaling=EXTERNAL, replicas=1)
    await world.settle()
    await pass_period(world)
    assert not world.objects("Job")
    assert "followed" not in world.status["model"]
    assert condition(world, "UpToDate")[0] == "True"


async def test_a_bucket_that_is_written_between_two_jobs_is_rolled_out_once() -> None:
    """It has the revision no more that the first one told. The second one looks at what is there."""
    bucket = {**CACHED, "uri": "s3://models/chat", "follow": "Branch"}
    world = World(model=bucket, scaling=EXTERNAL, replicas=2)
    world.cluster.put(make_claim("ReadWriteMany"))
    world.model_revision = FIRST
    await world.settle()
    world.model_revision = SECOND
    world.now += WHOLE_PERIOD
    await world.reconcile_until_quiet()
    world.run_controllers()
    world.model_revision = THIRD
    await world.settle()
    assert world.status["model"]["resolvedRevision"] == THIRD
    before = world.deployments()
    await pass_period(world)
    assert followed(world) == {"revision": THIRD, "askedAt": render_time(world.now)}
    assert world.deployments() == before
    assert len(world.objects("ControllerRevision")) == 2


@pytest.mark.parametrize("model", [FOLLOWED, MAIN])
async def test_an_edit_and_its_undoing_do_not_bring_back_what_was_given_up(model: dict[str, Any]) -> None:
    world = await make_followed()
    await give_up(world)
    world.edit(model=model)
    await world.settle()
    world.model_revision = FIRST
    world.edit(engine={"maxSequences": 4})
    await world.settle()
    world.edit(engine={})
    await world.settle()
    assert served(world) == [FIRST]
    assert condition(world, "Degraded")[0] == "False"


async def test_the_first_record_that_was_deleted_by_hand_restarts_nothing() -> None:
    world = await make_followed()
    (name,) = world.deployments()
    world.cluster.remove(CONTROLLER_REVISION, KEY.namespace, f"chat-{world.status['currentRevision']}")
    await world.settle()
    assert list(world.deployments()) == [name]
    await pass_period(world)
    assert list(world.deployments()) == [name]


async def test_a_clock_that_was_ahead_once_does_not_stop_the_asking() -> None:
    world = await make_followed()
    world.now += 365 * 86400
    await world.settle()
    world.now -= 365 * 86400 - 7200
    await move_on(world, SECOND)
    assert served(world) == [SECOND]


async def test_a_job_that_the_api_server_refuses_makes_nothing_degraded() -> None:
    world = await make_followed()
    words = "exceeded quota: count/jobs.batch"
    world.cluster.refuse = lambda obj: words if obj["kind"] == "Job" else None
    world.now += WHOLE_PERIOD
    for _ in range(5):
        await world.reconcile()
        world.now += 61
    assert words in followed(world)["message"]
    assert condition(world, "Degraded")[0] == "False"
    assert condition(world, "UpToDate")[0] == "True"
    assert len(events(world, "FollowFailed")) == 1


async def test_the_repair_of_one_that_is_never_given_up_is_found_on_the_branch() -> None:
    world = await make_followed(rollout={"rollback": "Never"})
    await begin_bad(world)
    world.model_revision = THIRD
    await pass_period(world)
    await pass_period(world)
    assert served(world) == [THIRD]
    assert condition(world, "UpToDate")[0] == "True"


async def test_what_a_job_said_that_cannot_be_deleted_is_believed_once() -> None:
    world = await make_followed()
    world.cluster.refuse_other = {"delete": "no"}
    world.now += WHOLE_PERIOD
    for _ in range(4):
        await world.reconcile()
        world.run_controllers()
    asked = followed(world)["askedAt"]
    assert find_asker(world)
    for _ in range(4):
        world.now += WHOLE_PERIOD
        await world.reconcile()
        world.run_controllers()
    assert followed(world)["askedAt"] == asked, "it is of another time"


async def test_one_outage_is_told_once_however_often_the_service_rests() -> None:
    world = await make_followed()
    await refuse_ask(world)
    for _ in range(3):
        world.edit(replicas=0)
        await world.settle()
        assert "message" in followed(world)
        world.now += 600
        world.edit(replicas=2)
        await world.settle()
    assert len(events(world, "FollowFailed")) == 1
