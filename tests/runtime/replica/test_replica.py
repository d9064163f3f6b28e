"""The real processes: supervisor, engine, HTTP, text worker."""

import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from millrace_runtime import contract
from millrace_runtime.replica.command import EXIT_PORT_TAKEN
from testing.addresses import needs_ipv6
from testing.polling import wait_until
from tests.runtime.api.served import sum_samples
from tests.runtime.replica.conftest import children_of

pytestmark = pytest.mark.slow
Start = Callable[..., "Replica"]  # noqa: F821  conftest's


def completion(max_tokens: int, *, stream: bool = True) -> dict[str, object]:
    return {
        "model": "tiny",
        "prompt": "Once",
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": stream,
        "ignore_eos": True,
    }


def events(response: httpx.Response) -> list[dict[str, object]]:
    lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines[-1] == "[DONE]", lines[-1]
    return [json.loads(line) for line in lines[:-1]]


def test_serves_streams_and_drains(start: Start, model_path: Path, client: httpx.Client) -> None:
    settings = ("--max-batched-tokens", "64", "--max-sequences", "4")
    replica = start("--model", str(model_path), *settings, is_forked=False)
    url = replica.address
    assert client.get(replica.live_address).text == client.get(probe_address(replica)).text == "ok\n"
    ready, model = client.get(f"{url}/readyz").json(), client.get(f"{url}/v1/models").json()["data"][0]
    assert model["id"] == "tiny"
    assert model["replica"] == ready["replica"]
    assert {"device": "cpu", "dtype": "float32", "tensor_parallel": 1, "max_sequences": 4}.items() <= {
        **ready["replica"]
    }.items()
    plain = client.post(f"{url}/v1/completions", json=completion(8, stream=False)).json()
    assert plain["usage"]["completion_tokens"] == 8
    startup = [line for line in client.get(f"{url}/metrics").text.splitlines() if "startup_time" in line]
    assert {"imports", "weights", "warmup"} == {
        line.split('phase="')[1].split('"')[0] for line in startup[2:]
    }

    with client.stream("POST", f"{url}/v1/completions", json=completion(3000)) as response:
        lines = response.iter_lines()
        next(lines)
        replica.process.send_signal(signal.SIGTERM)
        wait_until("it refuses requests", lambda: client.get(f"{url}/readyz").status_code == 503)
        wait_until("the kubelet sees it", lambda: "it drains" in client.get(probe_address(replica)).text)
        refused = client.post(f"{url}/v1/completions", json=completion(1))
        assert refused.status_code == 503
        assert int(refused.headers["Retry-After"]) > 0
        assert client.get(replica.live_address).status_code == 200
        rest = [line.removeprefix("data: ") for line in lines if line]
    assert rest[-1] == "[DONE]"
    assert any(json.loads(line)["choices"][0]["finish_reason"] == "length" for line in rest[:-1])
    assert replica.wait() == 0
    assert replica.lines[-1] == "millrace: stopped"


def test_the_time_in_the_queue_is_what_a_request_waits_for_the_engine(
    start: Start, model_path: Path, client: httpx.Client
) -> None:
    """With room for one sequence, the second begins when the first has ended."""
    replica = start("--model", str(model_path), "--max-sequences", "1")
    url, scrape = f"{replica.address}/v1/completions", f"{replica.address}/metrics"

    def read(name: str) -> float:
        return sum_samples(client.get(scrape).text, name)

    with client.stream("POST", url, json=completion(1500)) as first, ThreadPoolExecutor(1) as others:
        lines = first.iter_lines()
        next(lines)
        second = others.submit(client.post, url, json=completion(1, stream=False))
        wait_until("the second waits", lambda: read(contract.METRIC_WAITING) == 1)
        assert read(f"{contract.METRIC_QUEUE}_count") == 1
        began = time.monotonic()
        rest = [line for line in lines if line]
        waited = time.monotonic() - began
        assert rest[-1] == "data: [DONE]"
        assert second.result().status_code == 200
    assert read(f"{contract.METRIC_QUEUE}_count") == 2
    queued = read(f"{contract.METRIC_QUEUE}_sum")
    assert 0.9 * waited < queued < read(f"{contract.METRIC_TTFT}_sum")


@needs_ipv6
def test_without_an_address_it_answers_on_ipv6_and_ipv4(
    start: Start, model_path: Path, client: httpx.Client
) -> None:
    replica = start("--model", str(model_path), "--host", "")
    for url in (replica.address, replica.live_address):
        assert url.startswith("http://127.0.0.1:")
    for address in ("127.0.0.1", "[::1]"):
        ready = replica.address.replace("127.0.0.1", address) + contract.PATH_READY
        assert client.get(ready).status_code == 200
        assert client.get(replica.live_address.replace("127.0.0.1", address)).status_code == 200


@needs_ipv6
def test_an_ipv6_address_is_bound_and_shown_in_brackets(
    start: Start, model_path: Path, client: httpx.Client
) -> None:
    replica = start("--model", str(model_path), "--host", "::1")
    assert replica.live_address.startswith("http://[::1]:")
    assert client.get(f"{replica.address}/v1/models").status_code == 200


def probe_address(replica: "Replica") -> str:  # noqa: F821  conftest's
    return replica.live_address.replace(contract.PATH_LIVE, contract.PATH_READY)


def test_a_replica_whose_http_process_has_no_time_for_a_probe_is_ready(
    start: Start, model_path: Path, client: httpx.Client
) -> None:
    """Load is no fault: an only replica that is taken from its clients serves none of them."""
    replica = start("--model", str(model_path), "--step-deadline-seconds", "2")
    replica.wait_for("ready after")
    http, probe = replica.children()["http_process"], probe_address(replica)
    os.kill(http, signal.SIGSTOP)
    assert (client.get(probe).status_code, client.get(probe).text) == (200, "ok\n")
    wait_until("it hangs", lambda: "http: no progress for" in client.get(probe).text)
    os.kill(http, signal.SIGCONT)
    wait_until("it is ready again", lambda: client.get(probe).status_code == 200)


def test_a_stopped_engine_fails_livez_and_a_second_signal_forces_exit(
    start: Start, model_path: Path, client: httpx.Client
) -> None:
    replica = start("--model", str(model_path), "--step-deadline-seconds", "2")
    url, live = replica.address, replica.live_address
    engine = replica.children()["engine_process"]
    with client.stream("POST", f"{url}/v1/completions", json=completion(3000)) as response:
        next(response.iter_lines())
        os.kill(engine, signal.SIGSTOP)
        wait_until("the stall shows", lambda: client.get(live).status_code == 503)
        assert "engine: no progress for" in client.get(live).text
        assert client.get(f"{url}/metrics").status_code == 200
        os.kill(engine, signal.SIGCONT)
        wait_until("it is live again", lambda: client.get(live).status_code == 200)
        os.kill(engine, signal.SIGSTOP)
        replica.process.send_signal(signal.SIGTERM)
        replica.wait_for("stopping: streams in flight finish")
        replica.process.send_signal(signal.SIGTERM)
        assert replica.wait() == 128 + signal.SIGTERM
    assert replica.lines[-1] == "millrace: stopped at once by a second SIGTERM"


def test_a_killed_engine_ends_its_streams_with_an_error_and_the_replica_with_it(
    start: Start, model_path: Path, client: httpx.Client
) -> None:
    replica = start("--model", str(model_path))
    with client.stream("POST", f"{replica.address}/v1/completions", json=completion(3000)) as response:
        lines = response.iter_lines()
        next(lines)
        os.kill(replica.children()["engine_process"], signal.SIGKILL)
        rest = [line for line in lines if line]
    assert any('"error"' in line and "engine" in line for line in rest), rest[-2:]
    assert replica.wait() == 128 + signal.SIGKILL
    assert "engine process was killed by SIGKILL" in replica.lines[-1]


def test_a_killed_http_process_takes_the_replica_with_it(start: Start, model_path: Path) -> None:
    replica = start("--model", str(model_path))
    assert replica.address
    children = replica.children()
    os.kill(children["http_process"], signal.SIGKILL)
    assert replica.wait() == 128 + signal.SIGKILL
    assert "HTTP process was killed by SIGKILL" in replica.lines[-1]
    assert not any(Path(f"/proc/{pid}").exists() for pid in children.values())


def split_address(replica: "Replica") -> tuple[str, int]:  # noqa: F821  conftest's
    host, _, port = replica.address.removeprefix("http://").partition(":")
    return host, int(port)


@contextlib.contextmanager
def rendering_for_ever(replica: "Replica") -> Iterator[int]:  # noqa: F821  conftest's
    """A chat whose template does not end, and the text worker that renders it."""
    with socket.create_connection(split_address(replica)) as client:
        text = children_of(replica.children()["http_process"])["text_process"]
        before = cpu_ticks(text)
        body = json.dumps({"messages": [{"role": "user", "content": "loop"}]}).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        client.sendall(head + body)
        wait_until("the template runs", lambda: cpu_ticks(text) > before + 20)
        yield text


def test_no_process_outlives_a_killed_supervisor(start: Start, model_path: Path) -> None:
    replica = start("--model", str(model_path))
    assert replica.address
    with rendering_for_ever(replica) as text:
        pids = [*replica.children().values(), text]
        replica.process.kill()
        wait_until("no process is left", lambda: not any(map(is_running, pids)))


def test_a_second_ctrl_c_leaves_the_port_free(start: Start, model_path: Path) -> None:
    replica = start("--model", str(model_path), "--host", "127.0.3.1")  # whose ports nobody else uses
    with rendering_for_ever(replica) as text:
        opened = [str(link.readlink()) for link in Path(f"/proc/{text}/fd").iterdir()]
        assert len([name for name in opened if name.startswith("socket:")]) == 1  # and not the listener
        replica.process.send_signal(signal.SIGINT)
        replica.wait_for("stopping: streams in flight finish")
        replica.process.send_signal(signal.SIGINT)
        assert replica.wait() == 128 + signal.SIGINT
        wait_until("the text worker has ended", lambda: not is_running(text))
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(split_address(replica))


def is_running(pid: int) -> bool:
    """A zombie that nobody reaps has ended too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_damaged_model_is_named_in_the_last_line(start: Start, model_path: Path, tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((model_path / name).read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"not weights")
    replica = start("--model", str(tmp_path))
    assert replica.wait() == contract.EXIT_BAD_MODEL
    assert "model.safetensors" in replica.lines[-1]
    assert not any("Traceback" in line for line in replica.lines)


def test_a_model_of_nan_never_turns_ready(start: Start, model_path: Path, tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((model_path / name).read_bytes())
    weights = load_file(model_path / "model.safetensors")
    weights["model.norm.weight"][0] = np.nan
    save_file(weights, tmp_path / "model.safetensors")
    replica = start("--model", str(tmp_path))
    assert replica.wait() == contract.EXIT_BAD_MODEL
    assert "logits are not finite" in replica.lines[-1]
    assert not any("Traceback" in line or "ready after" in line for line in replica.lines)


def test_a_signal_while_loading_is_a_clean_end(start: Start, model_path: Path) -> None:
    replica = start("--model", str(model_path))
    replica.wait_for("loading tiny")
    wait_until("two processes run", lambda: len(replica.children()) == 2)
    replica.process.send_signal(signal.SIGTERM)
    assert replica.wait() == 0
    assert replica.lines[-1] == "millrace: stopped"


def test_a_wrong_path_is_named_at_once(start: Start) -> None:
    replica = start("--model", "/no/such/model")
    assert replica.wait() == contract.EXIT_BAD_MODEL
    assert len(replica.lines) == 1
    assert (
        "no model at /no/such/model: there is nothing at that path; --model, or spec.model.uri"
        in replica.lines[0]
    )


def test_a_taken_port_is_one_clear_line(start: Start, model_path: Path) -> None:
    first = start("--model", str(model_path))
    port = first.live_address.rpartition(":")[2].partition("/")[0]
    second = start("--model", str(model_path), "--port", port)
    assert second.wait() == EXIT_PORT_TAKEN
    assert len(second.lines) == 1
    assert (
        f"can't listen on 127.0.0.1:{port}: Address already in use; end the process that listens"
        in second.lines[0]
    )


def test_an_idle_replica_hardly_uses_the_cpu(start: Start, model_path: Path, client: httpx.Client) -> None:
    replica = start("--model", str(model_path))
    client.post(f"{replica.address}/v1/completions", json=completion(2, stream=False))
    pids = [replica.process.pid, *replica.children().values()]
    time.sleep(1)
    turns, ticks, began = sum(map(wakeups, pids)), sum(map(cpu_ticks, pids)), time.monotonic()
    time.sleep(3)
    # uvicorn looks ten times a second whether it should end, each process beats once. A machine that takes
    # memory from idle processes makes each of these milliseconds long: the time shows only that none spins.
    seconds = time.monotonic() - began
    assert sum(map(wakeups, pids)) - turns <= 20 * seconds
    assert sum(map(cpu_ticks, pids)) - ticks <= 20 * seconds  # of 100 a second


def wakeups(pid: int) -> int:
    tasks = [task.read_text() for task in Path(f"/proc/{pid}/task").glob("*/status")]
    return sum(int(task.partition("\nvoluntary_ctxt_switches:")[2].split()[0]) for task in tasks)


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
