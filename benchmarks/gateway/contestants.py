"""The gateways that are compared, and how each is started before the stub replicas.

Each peer of PyPI has a virtual environment of its own in `$XDG_CACHE_HOME/millrace/gateway-peers`, nginx is
Debian's. One that can't be installed or started is left out with a line that says why.
"""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gateway.clients import Target
from benchmarks.gateway.ours import CLIENT_KEY, PODS, SERVICES, Api, make_pod, make_service, serve_gateway
from benchmarks.gateway.process import GATEWAY_CORE, Process, running
from millrace_runtime.contract import PORT_HTTP

OURS, DIRECT = "millrace", "direct"
NGINX = """
worker_processes 1;
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/nginx-error.log crit;
events {{ worker_connections 18000; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  keepalive_requests 100000000;
  upstream replicas {{ {servers} keepalive 1024; keepalive_requests 100000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://replicas;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_read_timeout 3600s;
    }}
  }}
}}
"""


class PeerError(Exception):
    """A peer can't be installed or started."""


@dataclass(frozen=True)
class Place:
    """What a gateway is started with."""

    addresses: Sequence[str]
    """The replicas' addresses."""
    folder: Path
    """For its files and its log."""


@dataclass(frozen=True)
class Started:
    """A gateway that runs."""

    target: Target
    process: Process


@dataclass(frozen=True)
class Contestant:
    """A gateway, or the way past all of them."""

    name: str
    version: str
    serve: Callable[[Place], AbstractContextManager[Started | None]]


def find_free_port() -> int:
    """Return a port of 127.0.0.1 that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def make_contestant(name: str) -> Contestant:
    """Return a contestant, installed. Raises PeerError."""
    if name in (OURS, DIRECT):
        return Contestant(name, "", serve_ours if name == OURS else serve_direct)
    if name == "nginx":
        return Contestant(name, _find_nginx(), serve_nginx)
    serve, package = {
        "vllm-router": (serve_vllm_router, "vllm-router"),
        "sglang-router": (serve_sglang_router, "sglang-router"),
        "litellm": (serve_litellm, "litellm[proxy]"),
    }[name]
    return Contestant(name, install(name, package), serve)


PEERS = ("nginx", "vllm-router", "sglang-router", "litellm")


def find_environment(name: str) -> Path:
    """Return the folder of a peer's virtual environment."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "millrace" / "gateway-peers" / name


def install(name: str, package: str) -> str:
    """Install a package of PyPI into an environment of its own. Returns its version. Raises PeerError."""
    folder = find_environment(name)
    pip = [str(folder / "bin" / "python"), "-m", "pip"]
    if not (folder / "bin" / name).exists():
        _run([sys.executable, "-m", "venv", str(folder)])
        _run([*pip, "install", "--quiet", package])
    said = _run([*pip, "show", name])
    return next(line.split()[1] for line in said.splitlines() if line.startswith("Version:"))


@contextmanager
def serve_direct(_place: Place) -> Iterator[None]:
    """No gateway at all."""
    yield None


@contextmanager
def serve_ours(place: Place) -> Iterator[Started]:
    """Our gateway, with a service of these replicas."""
    api, port = Api(), find_free_port()
    with api.serve():
        api.put(SERVICES, make_service("chat"))
        for number, address in enumerate(place.addresses):
            api.put(PODS, make_pod("chat", f"chat-{number}", address, api.public_key))
        with serve_gateway(api, port, find_free_port(), place.folder) as process:
            yield Started(Target(port, key=CLIENT_KEY), process)


@contextmanager
def serve_nginx(place: Place) -> Iterator[Started]:
    """Nginx with one worker, which buffers no answer."""
    port, config = find_free_port(), place.folder / "nginx.conf"
    servers = " ".join(f"server {address}:{PORT_HTTP};" for address in place.addresses)
    config.write_text(NGINX.format(folder=place.folder, port=port, servers=servers))
    command = [str(shutil.which("nginx")), "-c", str(config), "-p", str(place.folder)]
    with _run_peer(place, "nginx", command) as process:
        yield Started(Target(port), process)


@contextmanager
def serve_vllm_router(place: Place) -> Iterator[Started]:
    """VLLM's router in Rust."""
    with _serve_router(place, "vllm-router", []) as started:
        yield started


@contextmanager
def serve_sglang_router(place: Place) -> Iterator[Started]:
    """SGLang's router in Rust."""
    with _serve_router(place, "sglang-router", ["launch"]) as started:
        yield started


@contextmanager
def _serve_router(place: Place, name: str, words: Sequence[str]) -> Iterator[Started]:
    port = find_free_port()
    command = [str(find_environment(name) / "bin" / name), *words, "--host", "127.0.0.1", "--port", str(port)]
    command += ["--worker-urls", *(f"http://{address}:{PORT_HTTP}" for address in place.addresses)]
    command += ["--policy", "round_robin", "--log-level", "error", "--prometheus-port", str(find_free_port())]
    with _run_peer(place, name, command) as process:
        yield Started(Target(port), process)


@contextmanager
def serve_litellm(place: Place) -> Iterator[Started]:
    """LiteLLM's proxy with one worker, and each replica as a deployment of one model."""
    port, config = find_free_port(), place.folder / "litellm.yaml"
    models = "".join(
        "  - model_name: chat\n    litellm_params: {model: openai/chat, api_key: none, "
        f"api_base: 'http://{address}:{PORT_HTTP}/v1'}}\n"
        for address in place.addresses
    )
    config.write_text(f"model_list:\n{models}litellm_settings: {{request_timeout: 3600}}\n")
    program = find_environment("litellm") / "bin" / "litellm"
    command = [str(program), "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    with _run_peer(place, "litellm", [*command, "--num_workers", "1"]) as process:
        yield Started(Target(port), process)


@contextmanager
def _run_peer(place: Place, name: str, command: Sequence[str]) -> Iterator[Process]:
    environment = {
        "NO_PROXY": "*",
        "LITELLM_LOG": "ERROR",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
    }
    with running(command, GATEWAY_CORE, place.folder / f"{name}.log", environment=environment) as process:
        yield process


def _find_nginx() -> str:
    if shutil.which("nginx") is None:
        raise PeerError("it is not there: apt-get install nginx-light")
    said = subprocess.run(["nginx", "-v"], capture_output=True, text=True, check=False).stderr
    return said.strip().rpartition("/")[2]


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PeerError(f"{' '.join(command[-3:])}: {(done.stderr.strip() or '?').splitlines()[-1]}")
    return done.stdout
