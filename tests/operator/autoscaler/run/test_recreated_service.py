"""A service that is deleted and created again between two ticks, as by `kubectl replace --force`."""

import aiohttp
import pytest

from millrace_operator.autoscaler.decide.memory import Memory
from millrace_operator.autoscaler.run.settings import PrometheusSettings, ScalingSettings
from millrace_operator.autoscaler.run.tick import ScalingLoop
from millrace_operator.controller.cache import Cache
from millrace_operator.kube.kinds import Obj, ServiceKey
from testing.world import KEY, make_service

SCALING = {"mode": "Automatic", "minReplicas": 1, "maxReplicas": 9}
SETTINGS = ScalingSettings(PrometheusSettings("http://127.0.0.1:9"))


def make(uid: str, desired: int | None) -> Obj:
    service = make_service(scaling=SCALING)
    service["metadata"] |= {"uid": uid, "resourceVersion": "5"}
    return {**service, "status": {"scaling": {"desiredReplicas": desired} if desired else {}}}


class Stage:
    """One leader without a Prometheus: each decision holds the count of status."""

    def __init__(self) -> None:
        self.cache = Cache()
        self.recalled: list[str] = []
        self.loop = ScalingLoop(self.cache, SETTINGS, lambda _: None, lambda: True, recall=self._recall)

    async def _recall(self, key: ServiceKey) -> Memory:
        service = self.cache.service(key)
        assert service is not None
        self.recalled.append(service["metadata"]["uid"])
        return Memory()

    async def tick(self) -> None:
        async with aiohttp.ClientSession() as session:
            await self.loop.tick(session)

    @property
    def desired(self) -> int | None:
        advice = self.loop.advice(KEY)
        return advice.desired if advice else None


async def test_no_decision_of_the_one_before_is_shown_for_it() -> None:
    stage = Stage()
    stage.cache.put(make("old", 8))
    await stage.tick()
    assert stage.desired == 8
    stage.cache.put(make("new", None))
    assert (stage.desired, stage.loop.find_considered(KEY)) == (None, None)
    await stage.tick()
    assert (stage.desired, stage.recalled) == (1, ["old", "new"])
    await stage.tick()
    assert stage.recalled == ["old", "new"]


async def test_nor_where_it_was_made_in_the_midst_of_a_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    stage.cache.put(make("old", 8))
    await stage.tick()
    fetch = stage.loop._fetch

    async def fetch_late(*arguments: object) -> object:
        stage.cache.put(make("new", 8))
        return await fetch(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(stage.loop, "_fetch", fetch_late)
        await stage.tick()
    assert stage.desired is None
    await stage.tick()
    assert (stage.desired, stage.recalled) == (8, ["old", "new"])
