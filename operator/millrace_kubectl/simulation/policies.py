"""The autoscalers to compare, as `--policy` names them: `ours,hpa,keda:24,static:6`. Pure."""

from typing import NamedTuple

from millrace_kubectl.errors import UsageError
from millrace_operator.autoscaler.simulate.policies.contestants import CLAIRVOYANT, OURS, PEERS, STATIC

NAMES = {
    "ours": OURS,
    "hpa": "hpa-in-flight",
    "hpa-queue": "hpa-queue",
    "keda": "keda",
    "knative": "knative",
    "kubeai": "kubeai",
    "wva": "wva-saturation",
    "inferno": "wva-inferno",
    "dynamo": "dynamo-throughput",
    "dynamo-load": "dynamo-load",
    "llmd": "llm-d",
    "static": STATIC,
    "clairvoyant": CLAIRVOYANT,
}
"""The policies by the names for `--policy`.

Its default is in `subcommands/simulate.py`, which shows it in the help without loading the simulator.
"""
OTHER_NAMES = {"kpa": "knative", **{policy: policy for policy in PEERS}, OURS: OURS}
"""Knative's autoscaler by its own name, and all policies by their names in the table."""
NO_KNOB = (OURS, CLAIRVOYANT)
MOST_COUNTS = 12


class PolicyChoice(NamedTuple):
    """An autoscaler to compare, with the value of its knob."""

    policy: str
    knob: float | None = None
    """None if it has none."""

    @property
    def setting(self) -> str:
        """The knob's name and value, as in the table; empty without a knob."""
        return "" if self.knob is None else f"{PEERS[self.policy].knob} {self.knob:g}"

    @property
    def label(self) -> str:
        """The autoscaler's name with its knob."""
        return f"{self.policy} {self.setting}".strip()


def read_choices(text: str, least: int, most: int) -> list[PolicyChoice]:
    """Return the choices in `--policy`, each once. Raises UsageError."""
    return list(dict.fromkeys(_read_choice(word.strip(), least, most) for word in text.split(",")))


def _read_choice(word: str, least: int, most: int) -> PolicyChoice:
    name, colon, value = word.partition(":")
    policy = NAMES.get(name) or OTHER_NAMES.get(name)
    if policy is None:
        raise UsageError(f"--policy {word!r} is unknown; write some of {','.join(NAMES)}")
    if policy in NO_KNOB:
        if colon:
            raise UsageError(f"--policy {word}: {name} has no knob; write {name}")
        return PolicyChoice(policy)
    default = float(most) if policy == STATIC else PEERS[policy].default
    knob = _read_knob(word, name, value, default) if colon else default
    if policy == STATIC and not least <= knob <= most:
        raise UsageError(
            f"--policy {word}: the manifest allows {least} to {most} replicas; write one of them"
        )
    return PolicyChoice(policy, knob)


def _read_knob(word: str, name: str, value: str, default: float) -> float:
    try:
        knob = float(value)
    except ValueError:
        knob = 0.0
    if not 0 < knob < float("inf") or (name == STATIC and knob != int(knob)):
        kind = "a whole number" if name == STATIC else "a number"
        raise UsageError(f"--policy {word}: write {kind} of more than 0, such as {name}:{default:g}")
    return knob


def list_sweep(choices: list[PolicyChoice], least: int, most: int) -> list[PolicyChoice]:
    """Return every chosen rule with each value of its knob."""
    found = [
        PolicyChoice(choice.policy, value)
        for choice in choices
        if choice.policy not in NO_KNOB
        for value in (_list_counts(least, most) if choice.policy == STATIC else PEERS[choice.policy].values)
    ]
    return list(dict.fromkeys([*(choice for choice in choices if choice.policy != CLAIRVOYANT), *found]))


def _list_counts(least: int, most: int) -> list[float]:
    """Return at most `MOST_COUNTS` counts from bound to bound, with about the same ratio between them."""
    steps = MOST_COUNTS - 1
    found = (least * (most / least) ** (step / steps) for step in range(MOST_COUNTS))
    return sorted({float(round(count)) for count in found})
