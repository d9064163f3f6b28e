"""Four real replicas behind our gateway, each on an address of its own."""

import json
import shutil
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.gateway.ours import NAMESPACE, PODS, SERVICES, Api, make_pod, make_service, serve_gateway
from benchmarks.gateway.process import running
from benchmarks.runtime.models.checkpoint import write_model
from benchmarks.runtime.models.shapes import Shape
from benchmarks.runtime.ours import SERVE
from millrace_runtime.contract import FLAG_GATEWAY_KEY, FLAG_SERVED_NAME, FLAG_SERVICE, PORT_HTTP
from testing.text_model import TEMPLATE

SERVICE = "chat"
NUM_REPLICAS = 4
SHAPE = Shape(hidden=384, layers=8, heads=6, kv_heads=2, head_size=64, mlp=1024, vocabulary=4096)
"""14 million weights."""
KV_CACHE = "64Mi"
"""16,384 tokens: about the system prompts alone."""
MAX_SEQUENCES = 16
GATEWAY_PORT, METRICS_PORT = 18700, 18701
START_SECONDS = 120.0
POLICIES = {"least load": "benchmarks.routing.live.least_load", "prefix-affine": "benchmarks.gateway.in_pod"}


def list_addresses() -> list[str]:
    """Return the replicas' addresses: a pod's port is fixed, so each has an address of its own."""
    return [f"127.0.41.{number + 1}" for number in range(NUM_REPLICAS)]


def write_chat_model(folder: Path) -> Path:
    """Write random weights with a chat template. Random weights compute no less."""
    if not folder.exists():
        partial = folder.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        write_model(partial, SHAPE)
        config = partial / "tokenizer_config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | {"chat_template": TEMPLATE}))
        partial.rename(folder)
    return folder


@contextmanager
def serve(model: Path, policy: str, folder: Path, **clients: str) -> Iterator[str]:
    """Run replicas and the gateway while entered; yield the gateway's address.

    `clients` are keys by the names of clients; without any, CLIENT_KEY is the only one. Raises TimeoutError
    where they don't start; the logs in `folder` say why.
    """
    with ExitStack() as stack:
        api = Api(**clients)
        stack.enter_context(api.serve())
        api.put(SERVICES, make_service(SERVICE))
        for number, address in enumerate(list_addresses()):
            command = [*SERVE, "--model", str(model), "--host", address, "--port", str(PORT_HTTP)]
            command += ["--live-port", "0", FLAG_SERVED_NAME, SERVICE, "--kv-cache-memory", KV_CACHE]
            command += ["--max-sequences", str(MAX_SEQUENCES), "--dtype", "bfloat16"]
            command += [FLAG_SERVICE, f"{NAMESPACE}/{SERVICE}", f"{FLAG_GATEWAY_KEY}={api.public_key}"]
            stack.enter_context(running(command, number % 2, folder / f"replica-{number}.log"))
        for address in list_addresses():
            wait_for(f"http://{address}:{PORT_HTTP}/readyz")
        for number, address in enumerate(list_addresses()):
            api.put(PODS, make_pod(SERVICE, f"replica-{number}", address, api.public_key))
        stack.enter_context(serve_gateway(api, GATEWAY_PORT, METRICS_PORT, folder, POLICIES[policy]))
        wait_for(f"http://127.0.0.1:{METRICS_PORT}/metrics")
        yield f"http://127.0.0.1:{GATEWAY_PORT}"


def wait_for(url: str, seconds: float = START_SECONDS) -> None:
    """Wait until an address answers with success."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5):  # noqa: S310  ours
                return
        except OSError as error:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{url} does not answer after {seconds:g} s: {error}") from error
        time.sleep(0.1)


def list_replicas() -> Sequence[str]:
    """Return where each replica has its metrics."""
    return [f"http://{address}:{PORT_HTTP}" for address in list_addresses()]
