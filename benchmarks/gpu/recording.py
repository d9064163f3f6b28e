"""Records steps with torch's profiler."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch.profiler import profile, record_function

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.serving import Driver
from benchmarks.gpu.timeline import ON_DEVICE, STEP, Event


def operations_of(bench: Bench) -> frozenset[str]:
    """Return the categories of events that the device does. In a dry run the steps' own ranges stand in."""
    return bench.sized(ON_DEVICE, frozenset({"user_annotation"}))


def record_steps(bench: Bench, driver: Driver, chunks: Sequence[int]) -> list[Event]:
    """Run steps with two in flight, and return the trace's events. `chunks` has each step's."""
    with profile(activities=bench.device.activities):  # its first use takes long, and would be in the trace
        bench.device.synchronize()
    with profile(activities=bench.device.activities) as recorded:
        for number, chunk in enumerate(chunks):
            with record_function(f"{STEP}{number}"):
                driver.submit(chunk)
            if number:
                driver.collect()
        driver.collect()
        bench.device.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        recorded.export_chrome_trace(str(path))
        events: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return [event for event in events if event.get("ph") == "X"]
