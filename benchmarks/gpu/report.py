"""A part's result: its JSON, the table that people read, and whether its checks held. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.gpu.runner import Outcome, Ran


def has_failed(steps: Sequence[Ran]) -> bool:
    """Return whether a step did not run to its end, or a check did not hold. A missed aim is no failure."""
    return any(step.outcome is not Outcome.RAN or list(failed_checks(step)) for step in steps)


def failed_checks(step: Ran) -> Iterator[Mapping[str, Any]]:
    """Yield the checks that did not hold."""
    return (row for row in step.rows if row["kind"] == "check" and not row["holds"])


def render_part(head: Mapping[str, Any], steps: Sequence[Ran]) -> dict[str, Any]:
    """Return the part's JSON."""
    rows = [row for step in steps for row in step.rows]
    return {
        **head,
        "seconds": round(sum(step.seconds for step in steps), 1),
        "checks": _count([row for row in rows if row["kind"] == "check"]),
        "aims": _count([row for row in rows if "aim" in row]),
        "steps": [step.to_json() for step in steps],
        "kernels": _merge(steps, "kernels"),
    }


def render_tuned(steps: Sequence[Ran]) -> dict[str, Any]:
    """Return the configurations that kernels chose for themselves, step by step."""
    return _merge(steps, "tuned")


def _merge(steps: Sequence[Ran], name: str) -> dict[str, Any]:
    return {step.name: step.facts[name] for step in steps if step.facts.get(name)}


def _count(judged: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    held = sum(bool(row["holds"]) for row in judged)
    return {"held": held, "missed": len(judged) - held}


def render_table(steps: Sequence[Ran]) -> Iterator[str]:
    """Yield the lines that a person reads."""
    for step in steps:
        yield from render_step(step)


def render_step(step: Ran) -> Iterator[str]:
    """Yield a step's lines: how it ended, the checks that failed, and each figure."""
    checks = [row for row in step.rows if row["kind"] == "check"]
    held = len(checks) - len(list(failed_checks(step)))
    told = f", {held} of {len(checks)} checks hold" if checks else ""
    yield f"{step.name:<28}{step.outcome} in {step.seconds:.1f} s{told}"
    for row in failed_checks(step):
        yield f"  FAILED {row['name']}: {_list_facts(row['facts'])}"
    if step.error is not None:
        yield f"  {step.outcome.upper()}: {step.error.strip().splitlines()[-1]}"
    for row in step.rows:
        if row["kind"] == "figure":
            yield f"  {row['name']:<46}{row['value']:>12.4g} {row['unit']:<10}{_render_aim(row)}"


def _render_aim(row: Mapping[str, Any]) -> str:
    if "aim" not in row:
        return ""
    return f"aim {row['aim']}: {'holds' if row['holds'] else 'MISSED'}"


def _list_facts(facts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items())
