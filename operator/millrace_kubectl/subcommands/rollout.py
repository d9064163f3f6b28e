"""`kubectl millrace promote`, `abort` and `refresh`: decide about a service's new revision."""

import argparse
from dataclasses import dataclass
from typing import Any

from millrace_kubectl.errors import PluginError
from millrace_kubectl.facts import find_unread
from millrace_kubectl.kubectl import Obj, Services
from millrace_kubectl.wording import NO_OPERATOR
from millrace_operator.api.annotations import REFRESH_ANNOTATION, ROLLOUT_ANNOTATION, Action, Order, Refresh
from millrace_operator.api.conditions import Reason, find_condition, render_time
from millrace_operator.api.model_uri import can_change, is_looked_at

PROMOTE_DESCRIPTION = """End the canary of the revision that the spec asks for: it gets all replicas, and
those of its canary go on. A revision that was given up is tried again. It writes the annotation
millrace.dev/rollout, which needs the right to patch inferenceservices."""
ABORT_DESCRIPTION = """Give up the revision that is rolled out: the one before gets all replicas back. It is
not tried again until the spec changes or somebody promotes it. It writes the annotation
millrace.dev/rollout, which needs the right to patch inferenceservices."""
REFRESH_DESCRIPTION = """Ask the source of a service's model which revision it has now. A new one is rolled
out like an edit. It writes the annotation millrace.dev/refresh, which needs the right to patch
inferenceservices."""
REFUSED = frozenset({Reason.DOES_NOT_FIT, Reason.MODEL_INVALID, Reason.SETTINGS_INVALID})
"""The reasons for which a model in a claim has no pod yet. Its pods would read the claim themselves."""


def add_parsers(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the three sub-commands."""
    for run, summary, description in (
        (promote, "give a new revision all replicas", PROMOTE_DESCRIPTION),
        (abort, "give a new revision up", ABORT_DESCRIPTION),
        (refresh, "ask a model's source once more", REFRESH_DESCRIPTION),
    ):
        parser = commands.add_parser(run.__name__, help=summary, description=description)
        parser.add_argument("name", metavar="NAME", help="the InferenceService")
        parser.set_defaults(run=run)


def promote(arguments: argparse.Namespace, services: Services, now: float) -> str:
    """Promote the new revision, and return the consequence. Raises PluginError."""
    name = arguments.name
    found = _read_revisions(services.fetch(name))
    if not found.is_rejected and found.is_promoted:
        return (
            f"revision {found.asked} of {name} was promoted before: it gets all replicas as they become ready"
        )
    if not found.is_rejected and found.canary is None:
        what = "is being rolled out without a canary" if found.rollout else "has no rollout under way"
        return f"{name} {what}: there is nothing to promote"
    _order(services, name, Order(Action.PROMOTE, found.asked, render_time(now)))
    if found.is_rejected:
        return f"revision {found.asked} of {name} is tried again, with all replicas and without a canary"
    return f"revision {found.asked} of {name} is promoted: it gets all replicas as they become ready"


def abort(arguments: argparse.Namespace, services: Services, now: float) -> str:
    """Abort the rollout, and return the consequence. Raises PluginError."""
    name = arguments.name
    found = _read_revisions(services.fetch(name))
    if found.current is None:
        raise PluginError(f"{name} has served no other revision to go back to; edit its spec, or delete it")
    if found.is_rejected:
        return f"revision {found.asked} of {name} was given up before; revision {found.current} serves"
    if found.asked == found.current:
        raise PluginError(
            f"revision {found.current} of {name} serves completely; to go back, undo the last edit"
        )
    _order(services, name, Order(Action.ABORT, found.asked, render_time(now)))
    return f"revision {found.asked} of {name} is aborted: revision {found.current} gets all replicas back"


def _order(services: Services, name: str, order: Order) -> None:
    services.annotate(name, ROLLOUT_ANNOTATION, str(order))


def refresh(arguments: argparse.Namespace, services: Services, now: float) -> str:
    """Let the operator ask the model's source, and return the consequence. Raises PluginError."""
    name = arguments.name
    service = services.fetch(name)
    uri, found = service["spec"]["model"]["uri"], _read_revisions(service)
    status, wanted = service.get("status", {}), str(Refresh(found.asked, render_time(now)))
    if is_looked_at(uri):
        _check_refused(uri, status)
        services.annotate(name, REFRESH_ANNOTATION, wanted)
        return f"the operator looks at the model of {name} again, and rolls it out if it can be served now"
    if not can_change(uri):
        raise PluginError(f"{uri} never has another content: write another address into spec.model.uri")
    known = (status.get("model") or {}).get("resolvedRevision")
    if known is None:
        raise PluginError(f"the revision of {uri} is not known yet: the operator asks its source already")
    services.annotate(name, REFRESH_ANNOTATION, wanted)
    return f"the operator asks the source of {name} now, and rolls out {uri} if it is no longer {known}"


def _check_refused(uri: str, status: dict[str, Any]) -> None:
    """Raise PluginError if a look at a model in a claim would change nothing."""
    reason = (find_condition(status, "ModelReady") or {}).get("reason")
    if reason == Reason.RESOLVING:
        raise PluginError(f"the model in {uri} is not known yet: the operator looks at it already")
    if reason not in REFUSED:
        raise PluginError(
            f"replicas read {uri} themselves when they start: write another folder into spec.model.uri"
        )


@dataclass(frozen=True)
class _Revisions:
    """A service's revisions, from its status."""

    asked: str
    """The revision that the spec asks for."""
    current: str | None
    """The last revision that served with all its replicas."""
    rollout: dict[str, Any]
    """`status.rollout`; empty when none is under way."""
    is_rejected: bool

    @property
    def is_promoted(self) -> bool:
        """Whether the canary of the rollout under way is over."""
        return "promotedAt" in (self.rollout.get("canary") or {})

    @property
    def canary(self) -> dict[str, Any] | None:
        """The canary of the rollout, if it is not promoted."""
        canary: dict[str, Any] | None = self.rollout.get("canary")
        return None if self.is_promoted else canary


def _read_revisions(service: Obj) -> _Revisions:
    """Return the revisions. Raises PluginError while the operator would obey no order."""
    metadata, status = service["metadata"], service.get("status") or {}
    asked, name = status.get("updateRevision"), metadata["name"]
    is_seen = status.get("observedGeneration") == metadata.get("generation")
    unread = find_unread(status) or (_find_fault(status) if asked is None else None)
    if is_seen and unread:
        raise PluginError(f"the operator obeys no order for {name} now: {unread}. Correct that first")
    if asked is None or not is_seen:
        raise PluginError(
            f"the operator has not seen the last edit of {name} yet; try again in a moment, "
            f"and if it stays so, {NO_OPERATOR}"
        )
    rejected = status.get("rejectedRevision", {}).get("revision")
    return _Revisions(asked, status.get("currentRevision"), status.get("rollout", {}), rejected == asked)


def _find_fault(status: dict[str, Any]) -> str | None:
    """Return why there is no revision."""
    degraded = find_condition(status, "Degraded") or {}
    return degraded.get("message") if degraded.get("status") == "True" else None
