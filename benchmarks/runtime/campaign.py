"""A whole run: precision by precision all engines side by side, then our limit, two of ours, the starts."""

import contextlib
import datetime as dt
import importlib.metadata
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.runtime.bandwidth import measure_read_bandwidth
from benchmarks.runtime.engines import EngineSpec, RunningEngine
from benchmarks.runtime.errors import EngineError
from benchmarks.runtime.figures import OURS, Row, spread
from benchmarks.runtime.machine import describe_machine, measure_busy_percent
from benchmarks.runtime.memory_limit import CASE, measure_memory_limit
from benchmarks.runtime.models import SMALL, write_model
from benchmarks.runtime.ours import can_serve, our_server, our_specs
from benchmarks.runtime.peers import CHECKPOINT, PEERS, PYTHON_PEERS, START_ONLY, Peer
from benchmarks.runtime.progress import tell
from benchmarks.runtime.replicas import SHARED_CASES, measure_replicas
from benchmarks.runtime.report import render_comparison, render_ratios, render_rows, render_spread
from benchmarks.runtime.rounds import Rounds
from benchmarks.runtime.starts import compare_starts, time_starts
from benchmarks.runtime.workload import CASES

PRECISIONS = ("bf16", "int8", "int4")


@dataclass(frozen=True)
class Choice:
    """What to run."""

    parts: tuple[str, ...]
    precisions: tuple[str, ...]
    engines: tuple[str, ...] | None
    """By name, ours as "ours". None: all that are there."""
    num_rounds: int
    is_quick: bool
    """Answers are short, so that a run shows only that everything works."""
    peers: Path | None
    """$PEERS."""

    def has_engine(self, name: str) -> bool:
        """Whether an engine is wanted."""
        return self.engines is None or ("ours" if name == OURS else name) in self.engines


class Campaign:
    """One run, and what it has found so far."""

    def __init__(self, choice: Choice, folder: Path) -> None:
        """`folder` is for logs and models, and goes when the run has ended."""
        self._choice, self._folder = choice, folder
        self._num_threads = len(os.sched_getaffinity(0))
        self._rates: dict[Row, list[float]] = {}
        self._versions = read_our_versions()
        self._left_out: dict[str, str] = {}
        self._figures: dict[str, Any] = {}
        self._starts: dict[str, Any] = {}
        self._bandwidths: list[float] = []
        self._busy_percents: list[float] = []

    def run(self) -> dict[str, Any]:
        """Run every part, and return the result. Raises BenchmarkError."""
        self._model = self._find_model()
        for precision in self._choice.precisions:
            self._compare(precision)
        self._figures |= render_ratios(self._rates)
        if "memory" in self._choice.parts and self._choice.has_engine(OURS):
            self._measure_memory_limit()
        if "replicas" in self._choice.parts and self._choice.has_engine(OURS):
            self._measure_replicas()
        if "start" in self._choice.parts and self._choice.has_engine(OURS):
            self._time_starts()
        return self._render()

    def _find_model(self) -> Path:
        """Return the peers' checkpoint, so that all have the same weights; without peers one of our own."""
        peers = self._choice.peers
        if peers is not None and (peers / CHECKPOINT).exists():
            return peers / CHECKPOINT
        return write_model(self._folder / "small", SMALL)

    def _compare(self, precision: str) -> None:
        """Start every engine that has this precision, and measure them in turn."""
        cases = [case for case in CASES if case.name in self._choice.parts]
        specs = self._find_specs(precision) if cases else []
        self._busy_percents.append(measure_busy_percent())
        self._bandwidths.append(measure_read_bandwidth(self._num_threads))
        if self._choice.is_quick:
            cases = [case.shorten() for case in cases]
        with contextlib.ExitStack() as stack:
            engines = [engine for spec in specs if (engine := self._start(spec, stack)) is not None]
            rounds = Rounds(engines, cases)
            self._rates |= rounds.run(self._choice.num_rounds)
        self._left_out |= {
            f"{name} {precision}": f"failed: {reason}" for name, reason in rounds.failures.items()
        }

    def _find_specs(self, precision: str) -> list[EngineSpec]:
        """Return the engines of a precision, ours first; none where ours is wanted and lacks it."""
        specs = []
        if self._choice.has_engine(OURS):
            if not can_serve(precision):
                self._left_out[f"{OURS} {precision}"] = "`millrace serve` has no --weights: rows skipped"
                return []
            specs += our_specs(self._model, precision, self._num_threads)
        found = [self._find_peer(peer, precision) for peer in PEERS]
        return specs + [spec for spec in found if spec is not None]

    def _find_peer(self, peer: Peer, precision: str) -> EngineSpec | None:
        """Return how to start a peer, or None, and why, where it is not wanted or not there."""
        if precision not in peer.models or not self._choice.has_engine(peer.name):
            return None
        folder = self._choice.peers
        missing = "$PEERS is not set" if folder is None else peer.find_missing(folder, precision)
        if folder is None or missing is not None:
            self._left_out[f"{peer.name} {precision}"] = f"absent: {missing}"
            return None
        if peer.name not in self._versions and (version := peer.read_version(folder)) is not None:
            self._versions[peer.name] = version
        return peer.build(folder, folder / peer.models[precision], precision, self._num_threads)

    def _start(self, spec: EngineSpec, stack: contextlib.ExitStack) -> RunningEngine | None:
        """Start an engine and stop it where it is. Raises EngineError when it is ours that fails."""
        tell(f"starting {spec.name} {spec.precision} {spec.manner}")
        try:
            engine = stack.enter_context(spec.start(self._folder))
        except EngineError as error:
            if spec.name == OURS:
                raise
            self._left_out[f"{spec.name} {spec.precision}"] = f"failed: {error}"
            return None
        engine.pause()
        if engine.version is not None:
            self._versions[spec.name] = engine.version
        return engine

    def _measure_memory_limit(self) -> None:
        case = CASE.shorten() if self._choice.is_quick else CASE
        found = measure_memory_limit(self._folder, self._choice.num_rounds, self._num_threads, case)
        self._figures["decode_over_memory_limit"] = render_spread(found.share) | {
            "tokens_per_second": render_spread(found.tokens_per_second, digits=2),
            "bytes_per_token": found.bytes_per_token,
        }

    def _measure_replicas(self) -> None:
        cases = [case.shorten() if self._choice.is_quick else case for case in SHARED_CASES]
        found = measure_replicas(self._model, self._folder, self._choice.num_rounds, self._num_threads, cases)
        self._figures |= {
            f"two_replicas_over_one_{name}": render_spread(share) for name, share in found.items()
        }

    def _time_starts(self) -> None:
        peers = [peer for peer in (*PEERS, START_ONLY) if peer.name in PYTHON_PEERS]
        found = [self._find_peer(peer, "bf16") for peer in peers]
        specs = [our_server(self._model, "bf16"), *(spec for spec in found if spec is not None)]
        seconds, failures = time_starts(specs, self._folder, self._choice.num_rounds)
        self._left_out |= {f"{name}, its start": f"failed: {reason}" for name, reason in failures.items()}
        self._starts = {name: render_spread(spread(found), digits=2) for name, found in seconds.items()}
        if (comparison := compare_starts(seconds)) is not None:
            self._figures["start_seconds_over_python_peers"] = render_comparison(comparison)

    def _render(self) -> dict[str, Any]:
        gigabytes = [value / 1e9 for value in self._bandwidths]
        return {
            "benchmark": "runtime",
            "date": dt.datetime.now(dt.UTC).date().isoformat(),
            "machine": describe_machine()
            | {
                "memory_read_gb_per_second": render_spread(spread(gigabytes), digits=1),
                "busy_percent_of_others": max(self._busy_percents),
            },
            "model": f"Llama's shape, {SMALL.num_weights / 1e6:.1f} million weights, drawn at random",
            "threads": self._num_threads,
            "rounds": self._choice.num_rounds,
            "is_quick": self._choice.is_quick,
            "engines": self._versions,
            "left_out": self._left_out,
            "rows": render_rows(self._rates),
            "start_seconds": self._starts,
            "figures": self._figures,
        }


def read_our_versions() -> dict[str, str]:
    """Return the commit that is measured and the torch that it runs on."""
    command = ["git", "describe", "--always", "--dirty"]
    said = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return {OURS: said.stdout.strip() or "unknown", "torch": importlib.metadata.version("torch")}
