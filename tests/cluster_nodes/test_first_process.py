"""A pod of the product's images that is deleted at the very start of its process ends at once.

The kernel drops a signal to a PID namespace's first process that has no handler for it, and Python has none
for its first 0.1 to 0.25 s: without an init the pod would load on until its grace is over.
"""

import asyncio
from typing import Any

import pytest

pytestmark = pytest.mark.reads(
    "e2e/cluster", "images", "requirements.lock", "testing/polling.py", "operator/millrace_kubernetes"
)

DELAYS_SECONDS = [number / 15 for number in range(16)]
"""From the start of a process to its deletion: before, during and after Python's own start."""


@pytest.mark.parametrize(
    ("image", "arguments"),
    [
        ("millrace/runtime:0.1.0", ["serve", "--model", "/models/stories"]),
        ("millrace/operator:0.1.0", ["fetch", "http://127.0.0.1:9/never", "/tmp/model"]),
        ("millrace/operator:0.1.0", ["gateway"]),
        ("millrace/operator:0.1.0", ["operator"]),
    ],
)
async def test_a_pod_deleted_as_its_process_starts_ends(bench: Any, image: str, arguments: list[str]) -> None:
    async def start_and_delete(delay: float) -> None:
        worker = bench.start(image=image, args=arguments)
        await bench.wait(worker, lambda status: status["phase"] == "Running")
        await asyncio.sleep(delay)
        bench.delete(worker, grace_seconds=600)

    await asyncio.gather(*map(start_and_delete, DELAYS_SECONDS))
    await bench.until(lambda: len(bench.api.deleted) == len(DELAYS_SECONDS))
