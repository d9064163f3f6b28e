"""A whole run: precision by precision all engines side by side, then our limit, two of ours, the starts."""

import contextlib
import dataclasses
import importlib.metadata
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.record import read_commit, read_date
from benchmarks.requests.grammar_costs import NUM_SCHEMAS, measure_grammars
from benchmarks.requests.row_costs import OVER_PEER, measure_rows, measure_schemas_beside
from benchmarks.requests.vocabulary import write_vocabulary
from benchmarks.runtime.bandwidth import measure_read_bandwidth
from benchmarks.runtime.bystanders import Bystanders
from benchmarks.runtime.choice import Choice
from benchmarks.runtime.duration import estimate_seconds
from benchmarks.runtime.engines import EngineSpec, RunningEngine
from benchmarks.runtime.errors import EngineError, UnsupportedError
from benchmarks.runtime.figures import FORMER, OURS, Row, Spread, spread
from benchmarks.runtime.former import Former, prepare_former
from benchmarks.runtime.lineup import Lineup
from benchmarks.runtime.loads.chats import CHATS
from benchmarks.runtime.loads.formats import (
    PUBLISHED,
    list_own_specs,
    render_over_best,
    render_over_own,
    time_loads,
    write_published,
)
from benchmarks.runtime.loads.parts import OWN_LOADS
from benchmarks.runtime.loads.setting import Setting
from benchmarks.runtime.machine import describe_machine, read_num_threads
from benchmarks.runtime.memory_limit import CASE, measure_memory_limit
from benchmarks.runtime.models.checkpoint import write_model
from benchmarks.runtime.models.peer_files import find_checkpoint
from benchmarks.runtime.ours import our_server
from benchmarks.runtime.peers import PEERS, PYTHON_PEERS, START_ONLY, VLLM
from benchmarks.runtime.progress import report
from benchmarks.runtime.published import list_figures
from benchmarks.runtime.replicas import SHARED_CASES, measure_replicas
from benchmarks.runtime.report import render_comparison, render_ratios, render_rows, render_spread
from benchmarks.runtime.rounds import Rounds
from benchmarks.runtime.starts import compare_starts, time_starts
from benchmarks.runtime.workload import CASES, Case


class Campaign:
    """One run, and what it has found so far."""

    def __init__(self, choice: Choice, folder: Path) -> None:
        """`folder` is for logs and models, and goes when the run has ended."""
        self._choice, self._folder = choice, folder
        self._num_threads = read_num_threads()
        self._rates: dict[Row, list[float]] = {}
        self._versions = {OURS: read_commit(), "torch": importlib.metadata.version("torch")}
        self._lineup = Lineup(choice, self._num_threads)
        self._left_out = self._lineup.left_out
        self._figures: dict[str, Any] = {}
        self._starts: dict[str, Any] = {}
        self._bandwidths: list[float] = []
        self._bystanders = Bystanders(os.sysconf("SC_CLK_TCK"))

    def run(self) -> dict[str, Any]:
        """Run every part, and return the result. Raises UsageError.

        Where our own engine fails the run ends there: the result says so under "failed", beside what was
        measured until then.
        """
        self._model = self._find_model()
        try:
            self._measure()
        except EngineError as error:
            return self._render() | {"failed": str(error)}
        return self._render()

    def _measure(self) -> None:
        former = self._prepare_former()
        cases = [case for case in CASES if self._choice.has_part(case.name)]
        lineups = [
            self._lineup.find_specs(self._model, precision, former) if cases else []
            for precision in self._choice.precisions
        ]
        self._report_duration(cases, sum(map(len, lineups)))
        for specs in lineups:
            self._compare(specs, self._shorten(cases))
        if self._choice.has_part("memory"):
            self._measure_memory_limit()
        if self._choice.has_part("replicas"):
            self._measure_replicas()
        if self._choice.has_part("chats"):
            self._compare(self._lineup.find_caching_specs(self._model), self._shorten([CHATS]))
        self._measure_loads()
        if self._choice.has_part("formats"):
            self._measure_formats()
        if self._choice.has_part("rows") or self._choice.has_part("grammars"):
            self._measure_requests()
        if self._choice.has_part("start"):
            self._time_starts()

    def _find_model(self) -> Path:
        """Return the peers' checkpoint, so that all have the same weights; without peers one of our own."""
        subject, peers = self._choice.subject, self._choice.peers
        if peers is None:
            return write_model(self._folder / subject.stem, subject.shape)
        return find_checkpoint(subject, peers)

    def _prepare_former(self) -> Former | None:
        if self._choice.former is None:
            return None
        self._versions[FORMER] = self._choice.former
        return prepare_former(self._choice.former, self._folder / FORMER)

    def _report_duration(self, cases: Sequence[Case], num_engines: int) -> None:
        seconds = estimate_seconds(
            self._choice.subject.shape,
            self._shorten(cases),
            num_engines=num_engines,
            num_rounds=self._choice.num_rounds,
            num_threads=self._num_threads,
        )
        counts = f"rounds: {self._choice.num_rounds}, cases: {len(cases)}, engines: {num_engines}"
        report(f"{counts}; about {max(1, round(seconds / 60))} min, less on a quiet machine")

    def _compare(self, specs: Sequence[EngineSpec], cases: Sequence[Case]) -> None:
        """Start every engine of a precision, and measure them in turn."""
        self._bandwidths.append(measure_read_bandwidth(self._num_threads))
        with contextlib.ExitStack() as stack:
            engines = [engine for spec in specs if (engine := self._start(spec, stack)) is not None]
            rounds = Rounds(engines, cases, self._bystanders)
            try:
                found = rounds.run(self._choice.num_rounds)
                self._figures |= render_ratios(self._choice.subject, found)
            finally:
                self._rates |= rounds.rates
                self._left_out |= {
                    f"{name} {specs[0].precision}": f"failed: {reason}"
                    for name, reason in rounds.failures.items()
                }

    def _shorten(self, cases: Sequence[Case]) -> list[Case]:
        """Return the cases as this run asks them."""
        return [case.shorten() if self._choice.is_quick else case for case in cases]

    def _start(self, spec: EngineSpec, stack: contextlib.ExitStack) -> RunningEngine | None:
        """Start an engine and stop it where it is. Raises EngineError when it is ours that fails."""
        report(f"starting {spec.name} {spec.precision} {spec.manner}")
        try:
            engine = stack.enter_context(spec.start(self._folder))
        except EngineError as error:
            if spec.name == OURS:
                raise
            report(f"{spec.name} failed: {error}")
            self._left_out[f"{spec.name} {spec.precision}"] = f"failed: {error}"
            return None
        engine.pause()
        if engine.version is not None:
            self._versions[spec.name] = engine.version
        return engine

    def _measure_memory_limit(self) -> None:
        (case,) = self._shorten([CASE])
        num_rounds, num_threads = self._choice.num_rounds, self._num_threads
        found = measure_memory_limit(self._folder, num_rounds, num_threads, self._bystanders, case)
        self._figures["decode_over_memory_limit"] = render_spread(found.share) | {
            "tokens_per_second": render_spread(found.tokens_per_second, digits=2),
            "bytes_per_token": found.bytes_per_token,
        }

    def _measure_replicas(self) -> None:
        cases, num_rounds = self._shorten(SHARED_CASES), self._choice.num_rounds
        found = measure_replicas(
            self._model, self._folder, num_rounds, self._num_threads, self._bystanders, cases=cases
        )
        self._figures |= {
            f"two_replicas_over_one_{name}": render_spread(share) for name, share in found.items()
        }

    def _measure_requests(self) -> None:
        """Measure grammars and sampling, with a vocabulary that is like a real model's."""
        report("training a vocabulary")
        folder = self._folder / "requests"
        folder.mkdir()
        for name in ("config.json", "model.safetensors"):
            (folder / name).symlink_to(self._model / name)
        write_vocabulary(folder)
        num_rounds, is_quick = self._choice.num_rounds, self._choice.is_quick
        found: dict[str, Spread] = {}
        if self._choice.has_part("rows"):
            found |= measure_rows(folder, self._folder, num_rounds, self._bystanders, is_quick=is_quick)
            found |= self._measure_schemas_beside(folder)
        if self._choice.has_part("grammars"):
            found |= measure_grammars(folder, num_rounds, NUM_SCHEMAS // 50 if is_quick else NUM_SCHEMAS)
        self._figures |= {name: render_spread(share) for name, share in found.items()}

    def _measure_schemas_beside(self, model: Path) -> dict[str, Spread]:
        """Compare our rows with schemas with vLLM's, of the same model."""

        def build(peers: Path, _: Path, precision: str, num_threads: int) -> EngineSpec:
            return VLLM.build(peers, model, precision, num_threads)

        if (spec := self._lineup.find_peer(VLLM, "bf16", build)) is None:
            return {}
        num_rounds, is_quick = self._choice.num_rounds, self._choice.is_quick
        try:
            share = measure_schemas_beside(
                spec, model, self._folder, num_rounds, self._bystanders, is_quick=is_quick
            )
        except EngineError as error:
            self._left_out["vllm with schemas"] = f"failed: {error}"
            return {}
        return {OVER_PEER: share}

    def _measure_formats(self) -> None:
        """Compare quantised checkpoints with our own rounding and with peers' files of the same width."""
        models = {name: write_published(name, self._model, self._folder) for name in PUBLISHED}
        for name, model in models.items():
            beside, wanted = PUBLISHED[name].beside, PUBLISHED[name].cases
            # No peer reads FP8 on CPUs, and those of bf16 are no match for 8 bits.
            found = [self._lineup.find_peer(peer, beside) for peer in PEERS] if beside != "bf16" else []
            peers = [dataclasses.replace(spec, precision=name) for spec in found if spec is not None]
            cases = self._shorten([case for case in CASES if case.name in wanted])
            self._compare([*list_own_specs(name, self._model, model), *peers], cases)
            self._figures |= render_over_own(name, self._rates)
            self._figures |= render_over_best(name, self._rates)
        self._figures |= time_loads(self._model, models, self._choice.num_rounds)

    def _measure_loads(self) -> None:
        num_rounds, is_quick = self._choice.num_rounds, self._choice.is_quick
        setting = Setting(self._model, self._folder, num_rounds, self._bystanders, is_quick)
        for name, measure in OWN_LOADS.items():
            if not self._choice.has_part(name):
                continue
            try:
                self._figures |= measure(setting)
            except UnsupportedError as error:
                self._left_out[f"part {name}"] = str(error)

    def _time_starts(self) -> None:
        peers = [peer for peer in (*PEERS, START_ONLY) if peer.name in PYTHON_PEERS]
        found = [self._lineup.find_peer(peer, "bf16") for peer in peers]
        specs = [our_server(self._model, "bf16"), *(spec for spec in found if spec is not None)]
        seconds, failures = time_starts(specs, self._folder, self._choice.num_rounds)
        self._left_out |= {f"{name}, its start": f"failed: {reason}" for name, reason in failures.items()}
        self._starts = {name: render_spread(spread(found), digits=2) for name, found in seconds.items()}
        if (comparison := compare_starts(seconds)) is not None:
            self._figures["start_seconds_over_python_peers"] = render_comparison(comparison)

    def _render(self) -> dict[str, Any]:
        busy = self._bystanders.busy
        subject, num_weights = self._choice.subject, self._choice.subject.shape.num_weights
        gigabytes = [value / 1e9 for value in self._bandwidths]
        return {
            "benchmark": "runtime",
            "date": read_date(),
            "machine": describe_machine()
            | {
                "memory_read_gb_per_second": render_spread(spread(gigabytes), digits=1),
                "busy_percent_of_others": busy._asdict() if busy is not None else None,
            },
            "shape": subject.name,
            "model": f"{subject.title}, {num_weights / 1e6:.1f} million weights, drawn at random",
            "threads": self._num_threads,
            "rounds": self._choice.num_rounds,
            "is_quick": self._choice.is_quick,
            "engines": self._versions | self._lineup.versions,
            "left_out": self._left_out,
            "rows": render_rows(self._rates),
            "start_seconds": self._starts,
            "figures": {name: self._figures[name] for name in list_figures(subject) if name in self._figures},
        }
