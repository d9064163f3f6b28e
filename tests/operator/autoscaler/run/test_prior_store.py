"""One leader after another, on the fake API server: what the next one reads, and how often one writes."""

import asyncio
import json
import logging
import random
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from millrace_operator.api.change_record import find_newest, read_changes, render_change_line
from millrace_operator.autoscaler.capacity.latency_model import LatencyModel
from millrace_operator.autoscaler.decide.forecast import ForecastError, Outlook
from millrace_operator.autoscaler.decide.memory import Memory
from millrace_operator.autoscaler.run import prior_store as module
from millrace_operator.autoscaler.run.prior_store import (
    MOST_IN_A_PASS,
    PASS_SECONDS,
    PERIOD_SECONDS,
    TRIES,
    Priors,
)
from millrace_operator.autoscaler.run.settings import PrometheusSettings, ScalingSettings
from millrace_operator.autoscaler.run.tick import ScalingLoop
from millrace_operator.autoscaler.signals.observation import StepMoments
from millrace_operator.controller.cache import Cache
from millrace_operator.kube.errors import NotLeaderError, RefusedError, TransientError
from millrace_operator.kube.fake import FakeCluster
from millrace_operator.kube.kinds import (
    CONTROLLER_REVISION,
    INFERENCE_SERVICE,
    WATCHED,
    Listing,
    Obj,
    Scope,
    ServiceKey,
)
from millrace_runtime.contract import ANNOTATION_LEARNED, LABEL_SERVICE
from testing.world import KEY, World, make_pod, make_record, make_service, ready_status
from tests.operator.autoscaler.run.test_tick import OBJECTIVE

NAME = "chat-r1"
GPU = {"nvidia.com/gpu": "1"}
BEGAN = 1_700_000_000.0


def fit(seed: int = 1) -> LatencyModel:
    rng, model = random.Random(seed), LatencyModel()
    for _ in range(60):
        batch = rng.uniform(1, 16)
        moments = StepMoments("chat-1", 0.02 + 0.002 * batch, batch, batch, 60 * batch, 50)
        model = model.learn(moments)
    return model


LEARNED = Memory(
    model=fit(),
    revision="r1",
    prompt_tokens=40.0,
    generation_tokens=40.0,
    context_tokens=60.0,
    cold_starts=(20.0, 24.0),
)


@pytest.fixture
async def prometheus() -> AsyncIterator[str]:
    """Answers that chat-1 has three requests running, and that two a second arrive."""

    async def answer(request: web.Request) -> web.Response:
        at = float((await request.post())["time"])  # type: ignore[arg-type]
        values = {"age": at, "running": 3, "waiting": 0, "recent_arrivals": 2, "arrivals": 2}
        labels = {"namespace": KEY.namespace, "service": KEY.name, "pod": "chat-1"}
        result = [
            {"metric": {**labels, "signal": name}, "value": [at, str(value)]}
            for name, value in values.items()
        ]
        return web.json_response({"status": "success", "data": {"result": result}})

    app = web.Application()
    app.router.add_post("/api/v1/query", answer)
    async with TestServer(app) as server:
        yield str(server.make_url(""))


class Stage:
    """An API server with a service and its pod, and one operator after another."""

    def __init__(self, url: str) -> None:
        self.cluster, self.now, self._url = FakeCluster(), BEGAN, url
        self.is_leader = True
        scaling = {"mode": "Automatic", "maxReplicas": 9, "objectives": [OBJECTIVE]}
        self.cluster.put({**make_service(scaling=scaling), "status": {"scaling": {"desiredReplicas": 2}}})
        service = self.cluster.objects[(INFERENCE_SERVICE.kind, *KEY)]  # type: ignore[index]
        self.cluster.put(make_record(service))
        self.run_pods("r1", GPU)
        self.lead()

    def run_pods(self, revision: str, limits: dict[str, str]) -> None:
        pod = make_pod("chat-1", revision, **ready_status())
        pod["status"]["conditions"][0]["lastTransitionTime"] = "2026-01-01T00:00:30Z"
        pod["spec"] = {"containers": [{"name": "replica", "resources": {"limits": limits}}]}
        self.cluster.put(pod)

    def lead(self) -> None:
        """Let another operator lead: it knows what the API server has, and nothing else."""
        self.cache = Cache()
        self.priors = Priors(
            self.cluster, self.cache, lambda: self.is_leader, self._read_memory, lambda: self.now
        )
        self.loop = ScalingLoop(
            self.cache,
            ScalingSettings(PrometheusSettings(self._url)),
            lambda _: None,
            lambda: self.is_leader,
            lambda: self.now,
            recall=self.priors.recall,
        )

    def _read_memory(self, key: ServiceKey) -> Memory | None:
        considered = self.loop.considered.get(key)
        return considered.memory if considered else None

    async def tick(self) -> None:
        for kind in WATCHED:
            listed = [obj for key, obj in self.cluster.objects.items() if key.kind == kind.kind]
            copies = [dict(obj, metadata=dict(obj["metadata"])) for obj in listed]
            self.cache.sweep(Scope(kind), Listing(copies, sys.maxsize))
        async with aiohttp.ClientSession() as session:
            await self.loop.tick(session)
        await self.priors.write_due()

    def teach(self, memory: Memory = LEARNED) -> None:
        """Let the present leader have learned this."""
        before = self.loop._memories[KEY]
        self.loop._memories[KEY] = replace(memory, ready_since=before.ready_since, started=before.started)

    async def learn(self, memory: Memory = LEARNED) -> None:
        """Let the present leader learn, and write it down."""
        await self.tick()
        self.teach(memory)
        await self.tick()

    @property
    def memory(self) -> Memory:
        return self.loop._memories[KEY]

    @property
    def reason(self) -> str:
        return str(self.loop.considered[KEY].decision.reason)

    @property
    def record(self) -> Obj:
        return self.cluster.objects[(CONTROLLER_REVISION.kind, KEY.namespace, NAME)]  # type: ignore[index]

    @property
    def learned(self) -> dict[str, str]:
        return find_newest([self.record]) or {}

    def write_by_hand(self, text: str) -> None:
        metadata = {**self.record["metadata"], "annotations": {ANNOTATION_LEARNED: text}}
        self.cluster.put({**self.record, "metadata": metadata})

    @property
    def num_writes(self) -> int:
        return sum(verb == "annotate" for verb, _, _ in self.cluster.writes)

    def record_change(self, number: int) -> None:
        """Let the count have changed, as the planner writes it into status."""
        service = self.cluster.objects[(INFERENCE_SERVICE.kind, *KEY)]  # type: ignore[index]
        at = f"2026-01-01T{number // 60:02d}:{number % 60:02d}:00Z"
        change = {"at": at, "from": number % 2, "to": 1 - number % 2, "reason": "ScalingUp", "binding": "x"}
        line = render_change_line({**change, "message": "words"})
        changes = [*service["status"]["scaling"].get("lastChanges", []), line][-5:]
        self.cluster.put({**service, "status": {"scaling": {"desiredReplicas": 2, "lastChanges": changes}}})


@pytest.fixture
def stage(prometheus: str) -> Stage:
    return Stage(prometheus)


async def test_a_new_leader_decides_at_once_with_what_the_last_one_learned(stage: Stage) -> None:
    await stage.tick()
    assert stage.reason == "Learning"
    assert stage.num_writes == 0
    stage.teach()
    await stage.tick()
    assert stage.num_writes == 1
    stage.lead()
    await stage.tick()
    assert stage.reason != "Learning"
    assert "forecast" in stage.loop.considered[KEY].decision.candidates
    assert (stage.memory.model, stage.memory.cold_starts) == (LEARNED.model, LEARNED.cold_starts)
    assert stage.memory.ready_since.keys() == {"chat-1"}
    assert stage.num_writes == 1


async def test_the_annotation_is_small(stage: Stage) -> None:
    for number in range(300):
        stage.record_change(number)
        await stage.tick()
    stage.teach()
    stage.now += PERIOD_SECONDS
    await stage.tick()
    data = stage.learned
    assert len(read_changes(data["changes"])) == 200
    assert json.loads(data["prior"])["accelerator"] == "nvidia.com/gpu=1"
    assert len(stage.record["metadata"]["annotations"][ANNOTATION_LEARNED]) < 32_000


async def test_the_first_model_does_not_wait_for_the_period_of_an_earlier_change(stage: Stage) -> None:
    stage.record_change(1)
    await stage.tick()
    assert "prior" not in stage.learned
    stage.teach()
    stage.now += 60
    await stage.tick()
    assert "prior" in stage.learned


async def test_after_a_rollout_in_between_the_model_is_doubted(stage: Stage) -> None:
    await stage.learn()
    stage.run_pods("r2", GPU)
    stage.lead()
    await stage.tick()
    assert stage.memory.revision == "r2"
    assert stage.memory.model.gram == LEARNED.model.distrust().gram
    assert stage.reason != "Learning"


async def test_on_other_hardware_it_is_learned_anew_and_the_old_is_kept_until_then(stage: Stage) -> None:
    await stage.learn()
    before = stage.learned["prior"]
    stage.run_pods("r2", {"amd.com/gpu": "1"})
    stage.lead()
    stage.record_change(1)
    await stage.tick()
    assert stage.reason == "Learning"
    stage.now += PERIOD_SECONDS
    await stage.tick()
    assert stage.num_writes == 2
    assert stage.learned["prior"] == before
    stage.teach(replace(LEARNED, revision="r2", model=fit(2)))
    stage.now += PERIOD_SECONDS
    await stage.tick()
    assert json.loads(stage.learned["prior"])["accelerator"] == "amd.com/gpu=1"


@pytest.mark.parametrize(
    "data",
    [
        {"prior": "{"},
        {"prior": '{"version": 2}'},
        {"prior": "[1]", "changes": "no changes\n"},
        {"changes": "\x00"},
        {"changes": 7},
        {},
        [],
    ],
)
async def test_a_damaged_annotation_is_logged_once_and_mended(
    stage: Stage, caplog: pytest.LogCaptureFixture, data: Any
) -> None:
    await stage.learn()
    stage.write_by_hand(json.dumps({**data, "at": "2026-01-01T00:00:00Z"} if data else data))
    stage.lead()
    for _ in range(3):
        await stage.tick()
    assert stage.reason == "Learning"
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.getMessage().partition(": ")[0] for record in warnings] == ["shop/chat"] * (
        "prior" in data
    )
    stage.now += PERIOD_SECONDS
    await stage.learn()
    stage.lead()
    await stage.tick()
    assert stage.memory.model == LEARNED.model


async def test_the_old_leaders_changes_and_the_new_ones_are_one_record(stage: Stage) -> None:
    for number in range(30):
        stage.record_change(number)
        await stage.tick()
    stage.now += PERIOD_SECONDS
    await stage.tick()
    stage.lead()
    for number in range(30, 60):
        stage.record_change(number)
        await stage.tick()
    stage.now += PERIOD_SECONDS
    await stage.tick()
    found = read_changes(stage.learned["changes"])
    assert [change["at"][11:16] for change in found] == [f"00:{number:02d}" for number in range(60)]


async def test_of_two_that_believe_they_lead_the_late_one_undoes_nothing(prometheus: str) -> None:
    """Both found no record. The late one finds the other's, and reads it before it writes its own."""
    late, quick = Stage(prometheus), Stage(prometheus)
    quick.cluster = late.cluster
    quick.lead()
    await late.tick()
    await quick.learn()
    written = quick.record
    late.teach(replace(LEARNED, prompt_tokens=4000.0))
    late.record_change(1)
    await late.tick()
    assert quick.record == written
    for _ in range(2):
        late.now += PERIOD_SECONDS
        await late.tick()
    assert json.loads(late.learned["prior"])["promptTokens"] == 4000.0
    assert len(read_changes(late.learned["changes"])) == 1


async def test_what_a_former_leader_writes_late_undoes_nothing(prometheus: str) -> None:
    """Both have read the record. The late one finds a newer one of the other, and reads it again."""
    late, quick = Stage(prometheus), Stage(prometheus)
    quick.cluster = late.cluster
    quick.lead()
    await late.learn()
    await quick.tick()
    quick.teach(replace(LEARNED, prompt_tokens=400.0))
    quick.now += PERIOD_SECONDS
    await quick.tick()
    written = quick.record
    assert json.loads(quick.learned["prior"])["promptTokens"] == 400.0
    late.teach(replace(LEARNED, prompt_tokens=4000.0))
    late.now += PERIOD_SECONDS
    await late.tick()
    assert late.record == written
    for _ in range(2):
        late.now += PERIOD_SECONDS
        await late.tick()
    assert json.loads(late.learned["prior"])["promptTokens"] == 4000.0


async def test_a_former_leader_writes_nothing_and_knows_nothing_when_it_leads_again(stage: Stage) -> None:
    await stage.learn()
    stage.teach(replace(LEARNED, prompt_tokens=4000.0))
    stage.now += PERIOD_SECONDS
    stage.cluster.faults.append(NotLeaderError("the Lease ran out"))
    await stage.tick()
    assert json.loads(stage.learned["prior"])["promptTokens"] == 40.0
    stage.is_leader = False
    before = stage.num_writes
    await stage.priors.write_due()
    await stage.priors.leave()
    assert stage.num_writes == before
    assert stage.priors._records == {}


async def test_records_of_services_that_are_gone_do_not_pile_up(stage: Stage) -> None:
    await stage.learn()
    [uid] = stage.priors._records
    for number in range(3):
        stage.priors._records[f"gone-{number}"] = stage.priors._records[uid]
    await stage.tick()
    assert [*stage.priors._records] == [uid]


async def test_a_leader_that_ends_writes_what_it_has_learned_since(stage: Stage) -> None:
    await stage.learn()
    stage.teach(replace(LEARNED, prompt_tokens=4000.0))
    await stage.tick()
    assert stage.num_writes == 1
    await stage.priors.leave()
    await stage.priors.leave()
    assert stage.num_writes == 2
    stage.lead()
    await stage.tick()
    assert stage.memory.prompt_tokens == 4000.0


async def test_an_api_server_that_fails_is_asked_again_before_it_is_learned_anew(stage: Stage) -> None:
    await stage.learn()
    stage.lead()
    stage.cluster.read_faults.append(TransientError("busy"))
    await stage.tick()
    assert KEY not in stage.loop.considered
    await stage.tick()
    assert stage.memory.model == LEARNED.model
    stage.lead()
    stage.cluster.read_faults.extend([TransientError("busy")] * TRIES)
    for _ in range(TRIES):
        await stage.tick()
    assert stage.reason == "Learning"


async def test_one_that_never_answers_holds_up_nobody_for_long(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(module, "READ_SECONDS", 0.01)
    monkeypatch.setattr(stage.cluster, "fetch", never)
    for _ in range(TRIES):
        await stage.tick()
    assert stage.reason == "Learning"


async def test_without_the_right_to_read_records_all_goes_on_as_before(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    await stage.learn()
    stage.lead()
    stage.cluster.read_faults.append(RefusedError("controllerrevisions is forbidden"))
    await stage.tick()
    assert stage.reason == "Learning"
    (warning,) = (record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)
    assert "controllerrevisions is forbidden" in warning


async def test_what_was_learned_moves_on_to_the_revision_that_serves(stage: Stage) -> None:
    await stage.learn()
    service = stage.cluster.objects[(INFERENCE_SERVICE.kind, *KEY)]  # type: ignore[index]
    newer = make_record(service)
    newer["metadata"] = {**newer["metadata"], "name": "chat-r2", "uid": "r2"}
    stage.cluster.put({**newer, "revision": 2})
    stage.cluster.put({**service, "status": {**service["status"], "currentRevision": "r2"}})
    stage.record_change(1)
    service = stage.cluster.objects[(INFERENCE_SERVICE.kind, *KEY)]  # type: ignore[index]
    stage.cluster.put({**service, "status": {**service["status"], "currentRevision": "r2"}})
    stage.now += PERIOD_SECONDS
    await stage.tick()
    assert stage.learned == {}
    stage.lead()
    await stage.tick()
    assert stage.memory.model == LEARNED.model
    assert stage.priors._records[service["metadata"]["uid"]].name == "chat-r2"


async def test_the_changes_of_a_service_in_mode_external_are_recorded_too(stage: Stage) -> None:
    service = stage.cluster.objects[(INFERENCE_SERVICE.kind, *KEY)]  # type: ignore[index]
    stage.cluster.put({**service, "spec": {**service["spec"], "scaling": {"mode": "External"}}})
    stage.record_change(1)
    await stage.tick()
    assert stage.learned.keys() == {"at", "changes"}


@pytest.mark.parametrize(("noise", "most"), [(0.04, 8), (0.5, 144)])
async def test_a_day_is_written_seldom(stage: Stage, noise: float, most: int) -> None:
    """A decision a minute, of a busy service that changes nothing, and of one where all moves."""
    rng, memory = random.Random(3), LEARNED
    await stage.learn()
    for _ in range(24 * 60):
        stage.now += 60
        moments = StepMoments("chat-1", 0.036 * rng.uniform(1 - noise, 1 + noise), 8, 8, 480, 50)
        memory = replace(
            memory,
            model=memory.model.learn(moments),
            prompt_tokens=40 * rng.uniform(1 - noise, 1 + noise),
            outlook=Outlook(error=ForecastError(quantile=0.5 + rng.uniform(0, 0.1))),
        )
        considered = stage.loop.considered[KEY]
        stage.loop.considered[KEY] = replace(considered, memory=memory)
        await stage.priors.write_due()
    assert 1 <= stage.num_writes <= most + 1


async def test_many_services_are_written_a_few_at_a_time(stage: Stage) -> None:
    await stage.learn()
    considered = stage.loop.considered[KEY]
    for number in range(50):
        service = make_service(scaling={"mode": "Automatic"})
        service["metadata"] = {**service["metadata"], "name": f"chat-{number}", "uid": f"uid-of-{number}"}
        stage.cache.put(service)
        stage.cache.put(stage.cluster.put(make_record(service)))
        pod = make_pod(f"pod-{number}", "r1", **ready_status())
        pod["metadata"]["labels"][LABEL_SERVICE] = f"chat-{number}"
        stage.cache.put(pod)
        stage.loop.considered[ServiceKey(KEY.namespace, f"chat-{number}")] = considered
    counts = []
    for _ in range(3):
        before = stage.num_writes
        await stage.priors.write_due()
        counts.append(stage.num_writes - before)
    assert counts == [40, 10, 0]
    assert MOST_IN_A_PASS / PASS_SECONDS == 4, "of the 50 writes a second that the operator may make"


async def test_the_planner_neither_reverts_it_nor_is_woken_by_it() -> None:
    world = World(scaling={"mode": "Automatic", "minReplicas": 1, "maxReplicas": 3})
    await world.settle()
    memory = replace(LEARNED, revision=next(iter(world.deployments())))
    priors = Priors(world.cluster, world.cache, lambda: True, lambda _: memory, lambda: world.now)
    await priors.write_due()
    (written,) = world.objects(CONTROLLER_REVISION.kind)
    assert find_newest([written])
    assert await world.reconcile_until_quiet() == 0
    world.edit(engine={"maxSequences": 4})
    await world.settle()
    assert written in world.objects(CONTROLLER_REVISION.kind)
    held = world.cache.find(written)
    assert held is not None
    assert held["metadata"]["annotations"][ANNOTATION_LEARNED] == "", "nobody keeps it in memory"
