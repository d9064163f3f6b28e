"""The facts in a service's object. An absent field is unknown, and never zero. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from millrace_kubectl.kubectl import Obj
from millrace_kubectl.wording import NOT_JUDGED, describe_seconds
from millrace_operator.api.annotations import PIN_ANNOTATION, Pin, find_active_pin
from millrace_operator.api.change_record import read_change_lines
from millrace_operator.api.conditions import UNREAD, Reason, find_condition, parse_time
from millrace_operator.api.quantities import parse_number
from millrace_operator.api.status_lines import (
    FUTILE_STEPS,
    MIN_LATENCY_SAMPLES,
    SPENT_SECONDS,
    TRIED,
    read_objectives,
)

OLD_SECONDS = 900.0
"""The operator refreshes its figures every ten minutes: older ones have no operator."""
NO_NODE = " cannot be scheduled: "
UPTAKE_SECONDS = 60.0
"""A leading operator takes up a pin within seconds."""


@dataclass(frozen=True)
class Facts:
    """One service at one moment."""

    service: Obj
    now: float
    """In seconds since 1970."""
    decision: Obj | None = None
    """The leading operator's report of its last decision; None if the plugin did not ask it."""
    silence: str | None = None
    """Since when no operator leads, in words; None if one leads, or the plugin did not look."""

    @property
    def name(self) -> str:
        """The service's name."""
        return str(self.service["metadata"]["name"])

    @property
    def full_name(self) -> str:
        """The model name by which clients reach the service from any namespace: `<namespace>/<name>`."""
        return f"{self.service['metadata'].get('namespace', 'default')}/{self.name}"

    @property
    def spec(self) -> Obj:
        """`spec.scaling`."""
        return self.service.get("spec", {}).get("scaling") or {}

    @property
    def status(self) -> Obj:
        """`status`, empty before an operator has seen the service."""
        return self.service.get("status") or {}

    @property
    def scaling(self) -> Obj:
        """`status.scaling`, empty before the first decision."""
        return self.status.get("scaling") or {}

    @property
    def evidence(self) -> Obj:
        """`status.scaling.evidence`, empty while there is none."""
        return self.scaling.get("evidence") or {}

    @property
    def cost(self) -> Obj:
        """`status.cost`, empty while no resource has a price."""
        return self.status.get("cost") or {}

    @property
    def model(self) -> Obj:
        """`status.model`."""
        return self.status.get("model") or {}

    @property
    def mode(self) -> str:
        """`spec.scaling.mode`, which says who decides the count."""
        return str(self.spec.get("mode", "Automatic"))

    @property
    def most(self) -> int:
        """The upper bound; the API server fills in its default."""
        return int(self.spec.get("maxReplicas", 1))

    @property
    def least(self) -> int:
        """The lower bound of a service that does not rest."""
        return max(1, int(self.spec.get("minReplicas", 1)))

    @property
    def desired(self) -> int | None:
        """The desired count, which the Deployments follow."""
        return self.scaling.get("desiredReplicas")

    @property
    def ready(self) -> int | None:
        """The number of replicas that answer."""
        return self.status.get("readyReplicas") if self.status.get("conditions") else None

    @property
    def num_unready(self) -> int:
        """Replicas that do not answer. `status.replicas` leaves out the additional one of a rollout."""
        return max(0, int(self.status.get("replicas", 0)) - (self.ready or 0))

    @property
    def wanted(self) -> int | None:
        """The largest candidate, before any limit."""
        return self.evidence.get("wantedReplicas")

    @property
    def changes(self) -> list[Obj]:
        """The last changes of the count, the newest last."""
        return read_change_lines(self.scaling.get("lastChanges", []))

    @property
    def figures(self) -> Obj:
        """All figures of the operator's last decision; empty if the plugin did not ask for it."""
        return (self.decision or {}).get("evidence") or {}

    def find_figure(self, name: str) -> float | None:
        """Return a number among the figures of the last decision; None if it is unknown."""
        return parse_number(self.figures.get(name))

    @property
    def is_only_tried(self) -> bool:
        """Whether the model knows only steps that a replica tried before its first request."""
        return self.evidence.get("learning") == TRIED

    @property
    def reason(self) -> str:
        """The reason for the count, in one word."""
        return str(self.scaling.get("reason", ""))

    @property
    def binding(self) -> str:
        """The term of the decision that set the count."""
        return str(self.scaling.get("binding", ""))

    @cached_property
    def pin(self) -> Pin | None:
        """The pin that holds now, if the mode obeys one."""
        return None if self.mode == "External" else find_active_pin(self.service, self.now)

    @property
    def is_old(self) -> bool:
        """Whether no operator leads, or its figures are older than a working operator's could be.

        An operator writes no figures if it can't read the spec, in mode External, and at rest.
        """
        at = parse_time(self.evidence.get("observedAt"))
        writes = not self.is_refused and self.mode != "External" and not self.is_at_rest
        return self.silence is not None or (writes and at is not None and self.now - at > OLD_SECONDS)

    @property
    def is_at_rest(self) -> bool:
        """Whether there is no replica because no request comes."""
        return self.mode == "Automatic" and self.spec.get("minReplicas") == 0 and self.desired == 0

    @property
    def is_refused(self) -> bool:
        """Whether the operator can't read the spec. Then it writes no figures and obeys no order."""
        return find_unread(self.status) is not None

    @property
    def is_pin_taken_up(self) -> bool:
        """Whether the present pin has decided the present count."""
        return self.reason == "Pinned" and str(self.pin) in self.scaling.get("message", "")

    @property
    def is_pin_overdue(self) -> bool:
        """Whether a leading operator would have taken up the pin by now."""
        if self.pin is None or self.is_pin_taken_up:
            return False
        entry = self._find_entry("f:metadata", "f:annotations", f"f:{PIN_ANNOTATION}")
        at = None if entry is None else parse_time(entry.get("time"))
        return at is not None and self.now - at > UPTAKE_SECONDS

    @property
    def is_seen(self) -> bool:
        """Whether the operator has seen the last edit of the spec."""
        generation = self.service["metadata"].get("generation")
        return generation is None or self.status.get("observedGeneration") == generation

    @property
    def objectives(self) -> list[Obj]:
        """The objectives as they were measured."""
        return read_objectives(self.evidence.get("latencies", []))

    def objectives_in(self, state: str) -> list[Obj]:
        """Return the objectives in a state: Met, Missed, Unknown or Infeasible."""
        return [objective for objective in self.objectives if objective.get("state") == state]

    def find_doubt(self, objective: Obj) -> str | None:
        """Return why an objective is uncertain in spite of enough requests; None if it is not."""
        percentile, samples = objective["percentile"], objective.get("samples") or 0
        if objective.get("state") != "Unknown" or not _are_enough(samples, percentile):
            return None
        reason = objective.get("doubt")
        return reason.partition(":")[0] if reason else NOT_JUDGED

    def condition(self, name: str) -> Obj:
        """Return a condition, empty if it is absent."""
        return find_condition(self.status, name) or {}

    def is_true(self, name: str) -> bool:
        """Whether a condition is there and True."""
        return bool(self.condition(name).get("status") == "True")

    @property
    def shortage_words(self) -> str | None:
        """The scheduler's message about a pod without a node; None if every pod has one."""
        messages = (one.get("message", "") for one in self.status.get("conditions", []))
        return next((text.split(NO_NODE, 1)[1] for text in messages if NO_NODE in text), None)

    @property
    def is_blind(self) -> bool:
        """Whether the count is held because signals are missing."""
        found = self.condition("ScalingActive")
        return (found.get("status"), found.get("reason")) == ("False", "SignalsMissing")

    @property
    def waits_for_feedback(self) -> bool:
        """Whether feedback will ask for a replica if an objective stays missed: its budget is being spent."""
        spent = (parse_number(one.get("spentSeconds")) for one in self.objectives_in("Missed"))
        is_whole = self.desired is not None and self.ready == self.desired
        is_followed = self.mode == "Automatic" and self.pin is None and is_whole
        is_due = any(seconds and seconds < SPENT_SECONDS for seconds in spent)
        return is_followed and is_due and not self.is_futile

    @property
    def is_futile(self) -> bool:
        """Whether more replicas have left as many requests late, so that feedback asks for no more."""
        return bool(self.objectives_in("Missed")) and self.evidence.get("futileSteps", 0) >= FUTILE_STEPS

    @property
    def is_waking(self) -> bool:
        """Whether requests wait for the first replica of a service that was at zero."""
        return self.condition("Ready").get("reason") == Reason.WAKING

    def figure(self, name: str) -> float | None:
        """Return a figure of the evidence in status; None if it is unknown."""
        return parse_number(self.evidence.get(name))

    def age(self, text: str | None) -> str | None:
        """Return how long ago a time of the API was; None without a time."""
        at = parse_time(text)
        return None if at is None else describe_seconds(self.now - at)

    def find_writer(self) -> tuple[str, str | None] | None:
        """Return the last writer of `spec.replicas`, and how long ago it wrote; None if it is unknown."""
        last = self._find_entry("f:spec", "f:replicas")
        return None if last is None else (str(last.get("manager", "")), self.age(last.get("time")))

    def _find_entry(self, *path: str) -> Obj | None:
        """Return the last entry of managedFields that has a field; None if there is none."""
        entries: list[Obj] = self.service["metadata"].get("managedFields") or []
        own = [entry for entry in entries if _has_field(entry.get("fieldsV1", {}), path)]
        return max(own, key=lambda entry: entry.get("time", ""), default=None)


def find_unread(status: Obj) -> str | None:
    """Return why the operator can't read a service's spec; None if it can."""
    degraded = find_condition(status, "Degraded") or {}
    message = str(degraded.get("message", ""))
    return message if degraded.get("status") == "True" and message.startswith(UNREAD) else None


def _are_enough(samples: int, percentile: int) -> bool:
    """Whether so many requests are enough for the operator to judge a percentile."""
    return percentile < 100 and samples >= MIN_LATENCY_SAMPLES / (1 - percentile / 100)


def _has_field(fields: Any, path: Sequence[str]) -> bool:
    for name in path:
        if name not in fields:
            return False
        fields = fields[name]
    return True
