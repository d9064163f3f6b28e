"""Prints what two runs found, by package."""

from development.seeded_faults.draw import PACKAGES, Fault
from development.seeded_faults.judge import TEXT_IS_GONE, Judgement

HEAD = (
    "package",
    "drawn",
    "judged before",
    "found before",
    "code is gone",
    "judged after",
    "found after",
    "lost",
)


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
    judged = before.keys() & set(ids)
    found = {name for name in judged if before[name].found_by}
    gone = {name for name in after.keys() & found if after[name].note == TEXT_IS_GONE}
    again = after.keys() & found - gone
    still = {name for name in again if after[name].found_by}
    counts = [str(len(names)) for names in (judged, found, gone, again, still)]
    return [*counts, ", ".join(sorted(again - still)) or "none"]
