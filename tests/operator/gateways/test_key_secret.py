"""The Secret with the gateways' private keys, as leaders make, read and rotate it."""

import asyncio
import base64
from collections.abc import Iterable
from typing import Any

import pytest

from millrace_operator.api.access_types import Access, DefaultAccess
from millrace_operator.controller.cache import Cache
from millrace_operator.controller.watch_recorder import WatchedLists
from millrace_operator.gateways.key_secret import LOOK_SECONDS, GatewayKeys, read_entries
from millrace_operator.gateways.signing_keys import list_named_keys
from millrace_operator.kube.errors import RefusedError, TransientError
from millrace_operator.kube.fake import FakeCluster
from millrace_operator.kube.kinds import EVERYWHERE, POD, SECRET, Obj, ObjectKey, Scope, ServiceKey
from millrace_runtime.contract import FLAG_GATEWAY_KEY, SECRET_GATEWAY_KEY
from millrace_runtime.gateway_token import TokenVerifier, sign_token
from testing.world import BEGAN, KEY, make_pod, make_service

DAY = 24 * 3600.0


class Leader:
    """An operator that leads, beside a clock that moves when told to."""

    def __init__(
        self, cluster: FakeCluster, unread: Iterable[Scope] = (), default: dict[str, Any] | None = None
    ) -> None:
        self.now = BEGAN
        self.cache = Cache()
        self.queued: list[ServiceKey] = []
        lists = WatchedLists([*EVERYWHERE, *unread])
        for scope in EVERYWHERE:
            lists.note(scope)
        access = DefaultAccess(access=Access.model_validate(default or {}))
        self.keys = GatewayKeys(
            cluster, access, self.cache, lists, self.queued.append, clock=lambda: self.now
        )

    def put_service(self, **spec: Any) -> None:
        service = make_service(**spec)
        service["metadata"] |= {"uid": "u", "resourceVersion": "1"}
        self.cache.put(service)

    async def find(self) -> str | None:
        return (await self.keys.find()).public


def read_secret(cluster: FakeCluster) -> Obj:
    return cluster.objects[ObjectKey(SECRET.kind, "millrace-system", SECRET_GATEWAY_KEY)]


def count_writes(cluster: FakeCluster) -> int:
    return sum(kind == SECRET.kind for _, kind, _ in cluster.writes)


async def test_leaders_at_once_make_one_secret_whose_private_key_signs_for_its_public_one() -> None:
    cluster = FakeCluster()
    first, second = Leader(cluster), Leader(cluster)
    public, other, again = await asyncio.gather(first.find(), second.find(), first.find())
    assert public is not None
    assert public == other == again
    (value,) = read_secret(cluster)["data"].values()
    token = sign_token(base64.b64decode(value), "shop/chat", BEGAN)
    assert TokenVerifier("shop/chat", [public]).is_valid(token, BEGAN)
    assert read_entries(read_secret(cluster)) == {"k-20260101T000000Z": public}


async def test_a_key_is_rotated_and_the_old_one_goes_once_no_pod_has_it() -> None:
    cluster = FakeCluster()
    leader = Leader(cluster)
    old = await leader.find()
    leader.cache.put(
        {**make_service(), "metadata": {**make_service()["metadata"], "uid": "u", "resourceVersion": "1"}}
    )
    pod = make_pod()
    pod["metadata"]["resourceVersion"] = "2"
    pod["spec"] = {"containers": [{"args": ["serve", f"{FLAG_GATEWAY_KEY}={old}"]}, {"args": None}]}
    leader.cache.put(pod)
    leader.now += 90 * DAY
    new = await leader.find()
    assert new != old
    leader.now += DAY
    assert await leader.find() == new
    assert set(read_entries(read_secret(cluster)).values()) == {old, new}
    second = Leader(cluster, [Scope(POD, "unread")])
    second.now = leader.now
    assert await second.find() == new
    assert len(read_secret(cluster)["data"]) == 2, "a namespace that nobody has read may have such a pod"
    leader.cache.forget(pod)
    leader.now += DAY
    await leader.find()
    assert set(read_entries(read_secret(cluster)).values()) == {new}


async def test_a_look_lasts_a_minute_and_a_failed_one_forgets_no_key() -> None:
    cluster = FakeCluster()
    leader = Leader(cluster)
    found = await leader.find()
    cluster.read_faults.append(TransientError("away"))
    assert await leader.find() == found
    assert len(cluster.read_faults) == 1, "it did not look"
    leader.now += LOOK_SECONDS
    assert await leader.find() == found
    assert not cluster.read_faults
    fresh = Leader(cluster)
    cluster.read_faults.append(TransientError("away"))
    with pytest.raises(TransientError):
        await fresh.find()


async def test_a_missing_right_is_told_and_its_end_wakes_the_services() -> None:
    cluster = FakeCluster()
    leader = Leader(cluster)
    leader.cache.put(
        {**make_service(), "metadata": {**make_service()["metadata"], "uid": "u", "resourceVersion": "1"}}
    )
    cluster.read_faults.append(RefusedError("secrets is forbidden"))
    found = await leader.keys.find()
    assert (found.public, "forbidden; upgrade the chart" in found.fault) == (None, True)
    assert leader.queued == []
    leader.now += LOOK_SECONDS
    assert await leader.find() is not None
    assert leader.queued == [KEY]


@pytest.mark.parametrize("kind", ["Pod", "Deployment", "ControllerRevision"])
def test_keys_are_found_wherever_a_pod_is_described(kind: str) -> None:
    spec: dict[str, Any] = {
        "containers": [{"args": ["serve", f"{FLAG_GATEWAY_KEY}=a", f"{FLAG_GATEWAY_KEY}=-b"]}, {}]
    }
    holders = {
        "Pod": {"spec": spec},
        "Deployment": {"spec": {"template": {"spec": spec}}},
        "ControllerRevision": {"data": {"template": {"spec": spec}}},
    }
    assert list(list_named_keys([{"kind": kind, **holders[kind]}, {"kind": "Service", "spec": {}}])) == [
        "a",
        "-b",
    ]


@pytest.mark.parametrize(
    ("spec", "default", "is_made"),
    [
        ({}, {}, False),
        ({"access": {}}, {}, False),
        ({"access": {"rateLimits": [{"per": "Service", "concurrency": 2}]}}, {}, True),
        ({}, {"rateLimits": [{"per": "Service", "concurrency": 2}]}, True),
    ],
)
async def test_gateways_get_keys_for_each_other_once_a_service_has_limits(
    spec: dict[str, Any],
    default: dict[str, Any],
    is_made: bool,  # noqa: FBT001  a column of the table
) -> None:
    cluster = FakeCluster()
    leader = Leader(cluster, default=default)
    leader.put_service(**spec)
    await leader.keys.keep(is_leader=False)
    assert not count_writes(cluster)
    await leader.keys.keep(is_leader=True)
    assert bool(count_writes(cluster)) is is_made
