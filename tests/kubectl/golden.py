"""Objects as an operator leaves them, and the answer of `explain` for each: expected.txt, in one file.

After a change of words, `python -m tests.kubectl.golden` writes that file again: its diff shows each
sentence.
"""

import json
import sys
from pathlib import Path
from typing import Any

from millrace_kubectl.details import list_changes, list_details
from millrace_kubectl.facts import Facts
from millrace_kubectl.summary import summarise

FOLDER = Path(__file__).with_name("golden")
EXPECTED = FOLDER / "expected.txt"
NOW = 1767322632.0  # 2026-01-02T02:57:12Z
WHOLE = ("missed-loading-pending", "missed-at-maximum", "signals-missing", "external-hpa", "not-seen")
"""Those whose details are shown, too."""


def read_cases() -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}


def explain(name: str, service: dict[str, Any]) -> str:
    facts = Facts(service, NOW, service.get("decision"))
    lines = [f"## {name}", *summarise(facts).lines]
    if name in WHOLE:
        lines += ["", *list_changes(facts, 6 * 3600.0), "", *list_details(facts)]
    return "\n".join(lines)


def render() -> str:
    return "\n\n".join(explain(name, service) for name, service in read_cases().items()) + "\n"


if __name__ == "__main__":
    EXPECTED.write_text(render())
    sys.exit(0)
