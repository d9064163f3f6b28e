import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.nodes.network.addresses import AddressBlock, claim_block
from e2e.cluster.nodes.network.endpoints import select_backends
from e2e.cluster.nodes.network.hosts import render_hosts, resolve_services, write_in_place
from e2e.cluster.nodes.network.proxy import ServiceProxy

pytestmark = pytest.mark.reads("e2e/cluster", "testing/polling.py", "operator/millrace_kubernetes")


def service(name: str, namespace: str = "prod", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": namespace}, "spec": spec}


def pod(address: str, *, ready: bool = True, **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "p", "namespace": "prod", "labels": {"app": "chat"}, **metadata},
        "spec": {"containers": [{"ports": [{"name": "http", "containerPort": 8000}]}]},
        "status": {"podIP": address, "conditions": [{"type": "Ready", "status": str(ready)}]},
    }


def test_addresses_are_unique_and_come_back_last() -> None:
    block = AddressBlock(16)
    first = block.allocate("a")
    assert first == "127.16.0.1" == block.allocate("a")
    assert block.allocate("b") == "127.16.0.2"
    block.release("a")
    assert block.allocate("c") == "127.16.0.3"


def test_two_node_processes_never_share_a_block() -> None:
    one, other = claim_block(), claim_block()
    assert one.number != other.number
    one.close()
    again = claim_block()
    assert again.number == one.number
    again.close()
    other.close()


def test_services_have_the_names_of_cluster_dns() -> None:
    services = [
        service("gateway", "system", clusterIP="127.96.0.9"),
        service("chat", type="ExternalName", externalName="gateway.system.svc.cluster.local"),
        service("outside", type="ExternalName", externalName="example.org"),
        service("headless", clusterIP="None"),
        service("kubernetes", "default", clusterIP="127.96.0.1"),
        service("loop", type="ExternalName", externalName="loop.prod.svc.cluster.local"),
    ]
    found = resolve_services(services, "cluster.local", "127.0.0.1")
    assert found == {
        ("system", "gateway"): "127.96.0.9",
        ("prod", "chat"): "127.96.0.9",
        ("default", "kubernetes"): "127.0.0.1",
    }
    text = render_hosts(pod("127.16.0.5"), "127.16.0.5", found, "cluster.local")
    assert "127.16.0.5\tp\n" in text
    assert "127.96.0.9\tchat.prod.svc.cluster.local chat.prod.svc chat.prod chat\n" in text
    assert "gateway.system gateway\n" not in text


def test_a_hosts_file_keeps_its_inode(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    write_in_place(path, "long text\n" * 9)
    inode = path.stat().st_ino
    write_in_place(path, "short\n")
    assert path.read_text() == "short\n"
    assert path.stat().st_ino == inode


def test_backends_are_ready_pods_of_the_selector() -> None:
    chat = service("chat", selector={"app": "chat"}, ports=[{"port": 80, "targetPort": "http"}])
    pods = [pod("127.16.0.2"), pod("127.16.0.3", ready=False), pod("127.16.0.4", deletionTimestamp="now")]
    assert select_backends(chat, chat["spec"]["ports"][0], pods) == [("127.16.0.2", 8000)]
    assert select_backends(chat, {"port": 80, "targetPort": "absent"}, pods) == []


async def test_the_proxy_takes_turns_and_closes_when_nothing_is_ready() -> None:
    block, servers = claim_block(), []
    first, second, service_address = (block.allocate(name) for name in ("first", "second", "service"))
    for number, address in ((2, first), (3, second)):

        async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int = number) -> None:
            writer.write(b"%d" % number)
            writer.close()

        servers.append(await asyncio.start_server(greet, address, 8000))
    pods = [pod(first), pod(second)]
    refused: list[str] = []
    proxy = ServiceProxy(lambda: pods, lambda _, text: refused.append(text))
    chat = service(
        "chat",
        clusterIP=service_address,
        selector={"app": "chat"},
        ports=[{"port": 8080, "targetPort": 8000}],
    )
    await proxy.follow([chat])

    async def ask() -> bytes:
        reader, writer = await asyncio.open_connection(service_address, 8080)
        try:
            return await reader.read()
        finally:
            writer.close()

    assert {await ask(), await ask()} == {b"2", b"3"}
    pods.clear()
    with pytest.raises(ConnectionResetError):
        await ask()
    await proxy.follow([])
    with pytest.raises(ConnectionRefusedError):
        await ask()
    await proxy.close()
    for server in servers:
        server.close()
    block.close()
    assert refused == []


async def test_a_port_that_was_taken_is_listened_for_once_it_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("e2e.cluster.nodes.network.proxy.RETRY_SECONDS", 0.01)
    block, refused = claim_block(), []
    address = block.allocate("service")
    chat = service("chat", clusterIP=address, selector={"app": "chat"}, ports=[{"port": 8080}])
    changed = asyncio.Event()
    proxy = ServiceProxy(list, lambda _, text: refused.append(text))
    with socket.create_server((address, 8080)):
        for _ in range(3):
            await proxy.follow([chat])
            await asyncio.wait_for(proxy.wait_until_due(changed), 5)
    assert [text.partition(": ")[0] for text in refused] == [f"cannot listen on {address}:8080"]
    await proxy.follow([chat])
    socket.create_connection((address, 8080), timeout=5).close()
    waiting = asyncio.create_task(proxy.wait_until_due(changed))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    changed.set()
    await asyncio.wait_for(waiting, 5)
    await proxy.close()
    block.close()
