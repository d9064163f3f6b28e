"""The sub-command `simulate`: reads all input and refuses bad one early, simulates, prints, and draws."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from millrace_kubectl.errors import UnwrittenError, UsageError
from millrace_kubectl.kubectl import Services
from millrace_kubectl.simulation import report
from millrace_kubectl.simulation.manifest import (
    Manifest,
    pick_service,
    read_documents,
    read_manifest,
    read_reported_price,
)
from millrace_kubectl.simulation.policies import PolicyChoice, read_choices
from millrace_kubectl.simulation.prometheus import read_flags
from millrace_kubectl.simulation.replica import Replica, build_hardware, read_fields, read_fit
from millrace_kubectl.simulation.report import describe, render_json, render_table
from millrace_kubectl.simulation.result import Measured
from millrace_kubectl.simulation.session import Progress, Session, count_simulations, find_initial
from millrace_kubectl.simulation.traffic import Past, Traffic, draw_traffic, fetch_history, read_trace
from millrace_operator.autoscaler.decide.policy import Policy
from millrace_operator.autoscaler.simulate.hardware import Hardware
from millrace_operator.autoscaler.simulate.policies.contestants import CLAIRVOYANT, OURS

DEFAULT_SINCE = 6 * 3600.0
NOTHING_KNOWN = (
    "what can a replica do? write --replica FILE with its step times, or --like NAME of a service that runs"
)


class _Wanted(NamedTuple):
    """The simulations to run."""

    session: Session
    choices: list[PolicyChoice]
    notes: list[str]


def compare(arguments: argparse.Namespace, services: Services, now: float, stream: TextIO) -> str:
    """Simulate, and return the answer. Raises PluginError."""
    _check_flags(arguments)
    if arguments.output is not None:
        report.prepare(arguments.output, with_sweep=arguments.sweep)
    session, choices, notes = _read(arguments, services, now)
    total = count_simulations(session, choices, with_sweep=arguments.sweep)
    progress = Progress(stream, total, session.traffic.seconds)
    try:
        measured = session.run(choices, progress)
        sweep = session.sweep(choices, measured, progress) if arguments.sweep else []
    finally:
        progress.close()
    is_json = arguments.format == "json"
    answer = (render_json if is_json else _render_text)(session, measured, sweep, notes)
    if arguments.output is None:
        return answer
    try:
        files = report.write(arguments.output, session, measured, sweep, notes)
    except OSError as error:
        raise UnwrittenError(report.describe_failure(arguments.output, error), answer) from error
    return answer if is_json else "\n".join([answer, *(f"written: {file}" for file in files)])


def _render_text(
    session: Session, measured: Sequence[Measured], sweep: Sequence[Measured], notes: Sequence[str]
) -> str:
    lines = [*describe(session, notes), "", *render_table(session.manifest, measured)]
    if sweep:
        lines += ["", "sweep:", *render_table(session.manifest, sweep)]
    return "\n".join(lines)


def _check_flags(arguments: argparse.Namespace) -> None:
    """Refuse flags without effect, and missing ones. Raises UsageError."""
    if arguments.filename is None and arguments.like is None:
        raise UsageError("which service? write -f FILE with its manifest, or --like NAME of one that runs")
    if arguments.replica is None and arguments.like is None:
        raise UsageError(NOTHING_KNOWN)
    if arguments.trace is not None and arguments.since is not None:
        raise UsageError("--since is of --from-prometheus; of a trace write --part BEGIN-END")
    if arguments.trace is None and (arguments.part is not None or arguments.scale is not None):
        flag = "--part" if arguments.part is not None else "--scale"
        raise UsageError(f"{flag} is of --trace; of a Prometheus write --since DURATION")
    given = (name for name, value in vars(arguments).items() if name.startswith("prometheus_") and value)
    if arguments.trace is not None and (name := next(given, None)) is not None:
        raise UsageError(f"--{name.replace('_', '-')} is of --from-prometheus")


def _read(arguments: argparse.Namespace, services: Services, now: float) -> _Wanted:
    model_service = services.fetch(arguments.like) if arguments.like else None
    manifest = _read_manifest(arguments.filename, model_service)
    choices = read_choices(arguments.policy, manifest.min_replicas, manifest.max_replicas)
    fitted = {} if model_service is None else read_fit(arguments.like, services.fetch_learned(arguments.like))
    replica = _read_replica(arguments, fitted, manifest)
    hardware = replica.hardware
    traffic = _read_traffic(arguments, manifest, hardware, now)
    traffic.check(hardware.kv_tokens)
    initial = arguments.initial
    if initial is None:
        initial = find_initial(manifest, traffic, hardware, arguments.seed)
    elif not manifest.min_replicas <= initial <= manifest.max_replicas:
        raise UsageError(
            f"--initial {initial}: the manifest allows {manifest.min_replicas} to {manifest.max_replicas}"
        )
    session = Session(
        manifest=manifest,
        traffic=traffic,
        hardware=hardware,
        scrape_seconds=arguments.scrape,
        seed=arguments.seed,
        initial_replicas=initial,
    )
    return _Wanted(session, choices, list(_list_notes(replica, manifest, choices)))


def _read_manifest(path: Path | None, model_service: Mapping[str, Any] | None) -> Manifest:
    if path is None:
        assert model_service is not None
        return read_manifest(model_service)
    manifest = read_manifest(pick_service(read_documents(path), str(path)))
    if manifest.price is None and model_service is not None:
        return replace(manifest, price=read_reported_price(model_service))
    return manifest


def _read_replica(arguments: argparse.Namespace, fitted: Mapping[str, float], manifest: Manifest) -> Replica:
    """Return the replica. With both flags the file's fields win over the fit's."""
    fields = dict(fitted)
    if arguments.replica is not None:
        documents = read_documents(arguments.replica)
        if len(documents) > 1:
            raise UsageError(f"{arguments.replica} has {len(documents)} objects; write one replica")
        fields |= read_fields(documents[0], str(arguments.replica))
    return build_hardware(fields, manifest, arguments.cold_start, is_fitted=bool(fitted))


def _read_traffic(
    arguments: argparse.Namespace, manifest: Manifest, hardware: Hardware, now: float
) -> Traffic:
    if arguments.trace is not None:
        return read_trace(arguments.trace, arguments.part, arguments.scale or 1, arguments.seed)
    namespace = arguments.namespace or manifest.namespace or "default"
    past = Past(now, arguments.since or DEFAULT_SINCE, arguments.scrape)
    history = fetch_history(read_flags(arguments), namespace, manifest.name, past)
    return draw_traffic(history, hardware.kv_tokens, arguments.seed)


def _list_notes(replica: Replica, manifest: Manifest, choices: list[PolicyChoice]) -> list[str]:
    """Return the notes about the replica, the mode and the policies."""
    notes = []
    if replica.assumed:
        notes.append(f"assumed of a replica: {replica.assumed}; --replica FILE sets them")
    if manifest.mode != "Automatic":
        notes.append(f"the manifest's mode is {manifest.mode}: simulated is what Automatic would do")
    if PolicyChoice(OURS) in choices:
        notes.append(
            f"assumed of the operator: it decides every {Policy.tick_seconds:g}s, its scale-down window is "
            f"{Policy.scale_down_window_seconds:g}s, and nodes have room for all"
        )
    if PolicyChoice(CLAIRVOYANT) in choices:
        notes.append("clairvoyant plans with the future load, window by window: not proven to be the minimum")
    return notes
