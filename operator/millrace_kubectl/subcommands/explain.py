"""`kubectl millrace explain`: why a service has its count, and what to do."""

import argparse
import json
from dataclasses import replace

from millrace_kubectl.details import list_changes, list_details
from millrace_kubectl.errors import ServerError
from millrace_kubectl.facts import Facts
from millrace_kubectl.kubectl import Services
from millrace_kubectl.summary import Summary, summarise
from millrace_kubernetes.durations import parse_duration

SUMMARY = "why a service has its count, and what to do"
DESCRIPTION = """Say how a service is, why it has its count, and what to do. It needs the right to get
inferenceservices, and no other. With the right to list controllerrevisions, --since looks further back.
-v asks the leading operator: it needs the right to list leases, and to port-forward in its namespace."""


def add_parsers(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the sub-command."""
    parser = commands.add_parser("explain", help=SUMMARY, description=DESCRIPTION)
    parser.add_argument("name", metavar="NAME", help="the InferenceService")
    parser.add_argument(
        "--since", type=_parse_since, metavar="DURATION", help="also list the changes since then, such as 6h"
    )
    parser.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="also show the inputs of the last decision, replica, cost and conditions",
    )
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help="default: text")
    parser.set_defaults(run=run)


def _parse_since(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def run(arguments: argparse.Namespace, services: Services, now: float) -> str:
    """Return the explanation. Raises PluginError."""
    service = services.fetch(arguments.name)
    facts, trouble = Facts(service, now), ""
    if arguments.verbose and facts.mode != "External":
        from millrace_kubectl.leader import fetch_decision  # noqa: PLC0415  -v alone needs an HTTP client

        try:
            facts = replace(facts, decision=fetch_decision(services, service))
        except ServerError as error:
            trouble = f"NOT ASKED for the inputs of the last decision: {error}"
    summary = summarise(facts)
    if arguments.output == "json":
        return render_json(facts, summary)
    lines = list(summary.lines)
    if arguments.since is not None:
        lines += ["", *list_changes(facts, arguments.since, services.fetch_record(arguments.name))]
    if arguments.verbose:
        lines += ["", *([trouble] if trouble else []), *list_details(facts)]
    return "\n".join(lines)


def render_json(facts: Facts, summary: Summary) -> str:
    """Return the same for programs: null is unknown."""
    metadata = facts.service["metadata"]
    found = {
        "namespace": metadata.get("namespace"),
        "name": facts.name,
        "state": summary.state,
        "want": facts.desired,
        "have": facts.ready,
        "summary": summary.lines,
        "remedies": summary.remedies,
        "pin": None if facts.pin is None else str(facts.pin),
        "scaling": facts.scaling or None,
        "device": facts.model.get("device"),
        "serving": facts.model.get("serving"),
        "cost": facts.cost or None,
        "decision": facts.decision,
        "conditions": facts.status.get("conditions", []),
    }
    return json.dumps(found, indent=2, ensure_ascii=False)
