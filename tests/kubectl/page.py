"""The page on simulations: its own command, run on its own replica, trace and manifest.

After a change of the simulator, `python -m tests.kubectl.page` writes the page's table again. It takes some
seconds, and Azure's conversation trace in the folder that `MILLRACE_TRACES` names.
"""

import io
import os
import re
import shlex
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path

import yaml

from millrace_kubectl import command

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "how-to" / "simulate.md"
TRACE = "AzureLLMInferenceTrace_conv.csv"
TRACES = Path(os.environ.get("MILLRACE_TRACES", "traces"))
TABLE = re.compile(r"(?<=```\n)POLICY .+?(?=```)", re.DOTALL)
MANIFEST = {
    "kind": "InferenceService",
    "metadata": {"name": "chat"},
    "spec": {
        "resources": {"limits": {"nvidia.com/gpu": 1}},
        "cost": {"acceleratorHour": "2.50", "currency": "USD"},
        "scaling": {
            "minReplicas": 1,
            "maxReplicas": 20,
            "objectives": [
                {"metric": "TimeToFirstToken", "percentile": 95, "target": "2s"},
                {"metric": "TimePerOutputToken", "percentile": 95, "target": "50ms"},
            ],
        },
    },
}
"""As the page describes it."""


def read_command(text: str) -> list[str]:
    """Return the words of the page's first command, without the pictures."""
    found = re.search(r"^kubectl millrace (simulate .+?)\n```", text, re.DOTALL | re.MULTILINE)
    assert found is not None
    words = shlex.split(found[1].replace("\\\n", ""))
    at = words.index("--output")
    return words[:at] + words[at + 2 :]


def read_table(text: str) -> str:
    """Return the table that the page shows."""
    found = TABLE.search(text)
    assert found is not None
    return found[0]


def simulate(text: str, folder: Path) -> str:
    """Return the table that the page's command prints."""
    replica = re.search(r"```yaml\n(overhead_seconds.+?)```", text, re.DOTALL)
    assert replica is not None
    (folder / "replica.yaml").write_text(replica[1])
    (folder / "service.yaml").write_text(yaml.safe_dump(MANIFEST))
    files = {TRACE: TRACES / TRACE, **{name: folder / name for name in ("replica.yaml", "service.yaml")}}
    printed = io.StringIO()
    with redirect_stdout(printed):
        assert command.run([str(files.get(word, word)) for word in read_command(text)]) == 0
    return printed.getvalue().partition("\n\n")[2]


if __name__ == "__main__":
    page = PAGE.read_text()
    with tempfile.TemporaryDirectory() as scratch:
        table = simulate(page, Path(scratch))
    PAGE.write_text(TABLE.sub(lambda _: table, page))
    sys.stdout.write(table)
