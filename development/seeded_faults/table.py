"""Prints what two runs found, by package."""

from development.seeded_faults.draw import PACKAGES, Fault
from development.seeded_faults.judge import Judgement

HEAD = ("package", "drawn", "found before", "found after", "lost")


def print_table(faults: list[Fault], before: dict[str, Judgement], after: dict[str, Judgement]) -> None:
    """Print a Markdown table. A fault is lost where a test found it before and none does after."""
    rows = {package.name: [f.id for f in faults if f.package == package.name] for package in PACKAGES}
    rows["all"] = [fault.id for fault in faults]
    print("| " + " | ".join(HEAD) + " |")
    print("|---" * len(HEAD) + "|")
    for name, ids in rows.items():
        print("| " + " | ".join([name, str(len(ids)), *_compare(ids, before, after)]) + " |")


def _compare(ids: list[str], before: dict[str, Judgement], after: dict[str, Judgement]) -> list[str]:
    """Count what was found. Only what was found before is judged after."""
    found = {name for name in ids if name in before and before[name].found_by}
    still = {name for name in found if name in after and after[name].found_by}
    lost = sorted(name for name in found - still if name in after)
    return [str(len(found)), str(len(still)), ", ".join(lost) or "none"]
