"""Looks, one after the other, on a real disk and with an API server in memory."""

import errno
import fcntl
import logging
import os
from pathlib import Path

import pytest

from millrace_node_cache.agent import Agent
from millrace_node_cache.disk import Disk
from millrace_node_cache.metrics import Metrics
from millrace_node_cache.models import ModelKey
from millrace_node_cache.plan import Limit, parse_limit
from millrace_node_cache.safe_open import measure
from tests.node_cache.conftest import MIB, MemoryApi, Root

A, B, C = (ModelKey("shop", name) for name in "abc")
OTHER = ModelKey("search", "a")


class Bench:
    """An agent whose clock goes on by one at each look."""

    def __init__(
        self, root: Root, limit: str = "1Ti", namespaces: tuple[str, ...] = ("shop", "search")
    ) -> None:
        self.root, self.api, self.metrics, self.now = root, MemoryApi(), Metrics(), 0.0
        self._namespaces = namespaces
        self.start(parse_limit(limit))

    def start(self, limit: Limit, namespaces: tuple[str, ...] | None = None) -> None:
        self._namespaces = namespaces or self._namespaces
        self.agent = Agent(
            Disk(self.root.path), self.api, self._namespaces, limit, self.metrics, clock=lambda: self.now
        )

    async def look(self) -> None:
        self.now += 1
        await self.agent.look()

    def labels(self) -> set[str]:
        return {name for name in self.api.labels if name.startswith("models.millrace.dev/")}

    def metric(self, name: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"millrace_node_cache_{name}")


def label(key: ModelKey) -> str:
    return f"models.millrace.dev/{key.name}"


async def test_a_model_that_is_whole_gets_a_label_once_and_one_that_goes_loses_it(root: Root) -> None:
    bench = Bench(root)
    await bench.look()
    assert (root.path / "search").is_dir()
    assert bench.api.num_writes == 0
    root.put(A)
    root.put(B, is_whole=False)
    for _ in range(3):
        await bench.look()
    assert bench.api.labels == {"kubernetes.io/os": "linux", label(A): str(MIB)}
    assert bench.api.num_writes == 1
    assert (bench.metric("models"), bench.metric("evictions_total")) == (1, 0)
    bench.start(parse_limit("1k"))
    await bench.look()
    assert not bench.labels()
    assert (bench.metric("models"), bench.metric("evictions_total")) == (0, 2)
    assert (root.has(A), root.has(B), root.rubbish()) == (False, False, [])


async def test_the_least_recently_used_goes_and_no_more_than_must(root: Root) -> None:
    bench = Bench(root)
    for key in (A, B, C):
        root.put(key)
    for key in (B, C, A):
        bench.api.uses = {}
        bench.api.use(key)
        await bench.look()
    bench.api.uses = {}
    bench.start(parse_limit("2500Ki"))  # another process, which remembers
    await bench.look()
    assert bench.labels() == {label(A), label(C)}
    assert [root.has(key) for key in (A, B, C)] == [True, False, True]
    assert bench.metric("excess_bytes") == 0


async def test_room_is_made_before_a_pod_has_fetched_and_what_runs_is_spared(root: Root) -> None:
    bench = Bench(root, "3Mi")
    root.put(A)
    root.put(B)
    bench.api.use(A)
    bench.api.use(C, MIB)
    await bench.look()
    assert [root.has(key) for key in (A, B)] == [True, False]
    bench.api.use(C, 9 * MIB)
    await bench.look()
    assert root.has(A)
    excess = bench.metric("excess_bytes")
    assert excess is not None
    assert excess >= 7 * MIB


async def test_a_fetch_is_left_alone_and_the_next_one_goes(root: Root) -> None:
    bench = Bench(root, "1500Ki")
    lock = os.open(root.put(A, is_whole=False) / ".millrace" / "lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    root.put(B)
    await bench.look()
    assert [root.has(key) for key in (A, B)] == [True, False]
    os.close(lock)
    bench.start(parse_limit("1k"))
    await bench.look()
    assert not root.has(A)


async def test_a_pod_that_was_bound_since_the_look_keeps_its_model(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(root, "1k")
    root.put(A)
    locked = Disk.locked

    def bind(disk: Disk, key: ModelKey) -> object:
        bench.api.use(A)
        return locked(disk, key)

    monkeypatch.setattr(Disk, "locked", bind)
    await bench.look()
    assert root.has(A)
    assert bench.metric("evictions_total") == 0


async def test_a_namespace_whose_pods_are_not_known_loses_nothing_and_keeps_no_other_waiting(
    root: Root, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(root, "1k")
    root.put(A)
    root.put(OTHER)
    bench.api.refused = {"shop"}
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            await bench.look()
        assert [root.has(key) for key in (A, OTHER)] == [True, False]
        lines = [text for text in caplog.messages if "the pods of namespace shop" in text]
        words = "the API server answered 403: pods is forbidden in shop"
        again = "the node cache tries again at each look"
        assert lines == [f"the pods of namespace shop: {words}; {again}"]
        assert bench.metric("failures_total") == 3
        bench.api.refused = {"nodes"}
        await bench.look()
    assert "the pods of namespace shop: works again" in caplog.messages
    assert not root.has(A)
    assert label(A) in bench.api.labels  # the label goes as soon as that is allowed
    bench.api.refused = set()
    await bench.look()
    assert not bench.labels()


async def test_what_a_namespace_has_that_is_no_longer_named_stays_as_its_pods_may_still_run(
    root: Root,
) -> None:
    bench = Bench(root, namespaces=("shop",))
    root.put(OTHER)
    await bench.look()
    assert bench.labels() == {label(OTHER)}
    bench.start(parse_limit("1k"))
    await bench.look()
    assert root.has(OTHER)
    bench.start(parse_limit("1k"), namespaces=("shop", "search"))
    await bench.look()
    assert not root.has(OTHER)
    assert (root.path / "search").is_dir()


async def test_a_disk_that_is_not_mounted_changes_nothing(
    root: Root, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(root)
    root.put(A)
    await bench.look()
    away = root.path.rename(root.path.with_name("away"))
    for _ in range(2):
        await bench.look()
    assert bench.labels() == {label(A)}
    assert sum("the disk:" in text for text in caplog.messages) == 1
    away.rename(root.path)
    await bench.look()
    assert bench.labels() == {label(A)}


async def test_folders_that_nobody_can_look_into_are_a_failure_and_named_once(
    root: Root, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(root)
    closed = {f"closed-{number}" for number in range(5)}
    for name in (*closed, "a"):
        root.put(ModelKey("shop", name))
    root.put(OTHER)

    def refuse(folder: int, name: str) -> int:
        if name in closed:
            raise PermissionError(errno.EACCES, "Permission denied", name)
        return measure(folder, name)

    monkeypatch.setattr("millrace_node_cache.disk.measure", refuse)
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            await bench.look()
        lines = [text for text in caplog.messages if "the node cache may not read" in text]
        assert len(lines) == 1
        assert lines[0].startswith(
            "the models of namespace shop: the node cache may not read closed-0, closed-1, closed-2"
        )
        assert "and 2 more" in lines[0]
        assert bench.metric("failures_total") == 3
        assert bench.labels() == {label(A), label(OTHER)}, "the others are looked after as ever"
        bench.start(parse_limit("1k"))
        await bench.look()
        assert all(root.has(ModelKey("shop", name)) for name in closed)
        assert not root.has(A)
        monkeypatch.undo()
        bench.start(parse_limit("1Ti"))
        await bench.look()
    assert bench.metric("failures_total") == 4


async def test_a_namespace_that_hides_its_models_is_a_failure_until_it_shows_them(
    root: Root, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(root)
    root.put(A)
    root.put(OTHER)
    really = os.open

    def refuse(path: str | int, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if (
            path == "millrace"
            and dir_fd is not None
            and Path(f"/proc/self/fd/{dir_fd}").readlink().name == "shop"
        ):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return really(path, flags, mode, dir_fd=dir_fd)

    with caplog.at_level(logging.INFO):
        monkeypatch.setattr(os, "open", refuse)
        for _ in range(2):
            await bench.look()
        assert sum("the models of namespace shop: [Errno 13]" in text for text in caplog.messages) == 1
        assert (bench.metric("failures_total"), bench.labels()) == (2, {label(OTHER)})
        monkeypatch.undo()
        await bench.look()
    assert "the models of namespace shop: works again" in caplog.messages
    assert (bench.metric("failures_total"), bench.labels()) == (2, {label(A), label(OTHER)})


async def test_nothing_more_is_evicted_while_what_was_evicted_cannot_be_removed(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(root, "1k")
    for key in (A, B, OTHER):
        root.put(key)

    def fail(_disk: Disk) -> None:
        raise PermissionError("somebody else's")

    monkeypatch.setattr(Disk, "sweep", fail)
    await bench.look()
    assert [root.has(key) for key in (A, B, OTHER)] == [True] * 3
    monkeypatch.undo()
    await bench.look()
    assert not any(root.has(key) for key in (A, B, OTHER))
