"""Whoever ends the benchmark of the operator is left with no operator and no control plane."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.reads("benchmarks", "development", "e2e", "kernels", "operator", "runtime")
ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import asyncio, signal, sys
from contextlib import contextmanager
import benchmarks.convergence.__main__ as benchmark

# A shell that runs the tests in the background ignores it, and what is ignored is inherited.
signal.signal(signal.SIGINT, signal.default_int_handler)

class Cluster:
    def __init__(self, *_, **__): pass
    def start(self): print("control plane", flush=True)
    def stop(self): print("control plane ended", flush=True)

@contextmanager
def operating():
    try:
        yield
    finally:
        print("operator ended", flush=True)

async def prepare(*_):
    with operating():
        print("measuring", flush=True)
        await asyncio.sleep(60)

benchmark.LocalCluster, benchmark.prepare = Cluster, prepare
sys.exit(benchmark.main([]))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_what_the_benchmark_has_started(number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as benchmark:
        assert benchmark.stdout is not None
        assert [benchmark.stdout.readline() for _ in range(2)] == ["control plane\n", "measuring\n"]
        benchmark.send_signal(number)
        assert benchmark.stdout.read() == "operator ended\ncontrol plane ended\n"
        assert benchmark.wait() != 0
