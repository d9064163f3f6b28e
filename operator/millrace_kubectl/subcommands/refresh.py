"""`kubectl millrace refresh`: ask a model's source once more."""

import argparse
from typing import Any

from millrace_kubectl.errors import PluginError
from millrace_kubectl.kubectl import Services
from millrace_kubectl.ordering import read_revisions
from millrace_operator.api.annotations import REFRESH_ANNOTATION, Refresh
from millrace_operator.api.conditions import Reason, find_condition, render_time
from millrace_operator.api.model_uri import can_change, is_looked_at

SUMMARY = "ask a model's source once more"
DESCRIPTION = """Ask the source of a service's model which revision it has now. Another one than before is
rolled out as by an edit. It writes the annotation millrace.dev/refresh, which takes the right to patch
inferenceservices."""


REFUSED = frozenset({Reason.DOES_NOT_FIT, Reason.MODEL_INVALID, Reason.SETTINGS_INVALID})
"""Of a model in a claim: no pod of it was made. Once one was, its replicas read what is there."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `refresh` needs."""
    parser.add_argument("name", metavar="NAME", help="the InferenceService")


def run(arguments: argparse.Namespace, services: Services, now: float) -> str:
    """Have the source asked, and return what happens now. Raises PluginError."""
    name = arguments.name
    service = services.fetch(name)
    uri, found = service["spec"]["model"]["uri"], read_revisions(service)
    status, refresh = service.get("status", {}), str(Refresh(found.asked, render_time(now)))
    if is_looked_at(uri):
        _check_refused(uri, status)
        services.annotate(name, REFRESH_ANNOTATION, refresh)
        return f"the model of {name} is looked at again; where it can be served now, it is rolled out"
    if not can_change(uri):
        raise PluginError(f"{uri} never has another content: write another address into spec.model.uri")
    known = (status.get("model") or {}).get("resolvedRevision")
    if known is None:
        raise PluginError(f"what {uri} has is not known yet: its source is being asked already")
    services.annotate(name, REFRESH_ANNOTATION, refresh)
    return f"the source of {name} is asked now; where {uri} is no longer {known}, that is rolled out"


def _check_refused(uri: str, status: dict[str, Any]) -> None:
    """Raise PluginError where a look at a model in a claim would change nothing."""
    reason = (find_condition(status, "ModelReady") or {}).get("reason")
    if reason == Reason.RESOLVING:
        raise PluginError(f"what {uri} has is not known yet: it is being looked at already")
    if reason not in REFUSED:
        raise PluginError(
            f"replicas read what is in {uri} as they start: write another folder into spec.model.uri"
        )
