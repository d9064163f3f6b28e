"""What Helm renders of the chart, by kind and name."""

import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "millrace"
NAMESPACE = "millrace"
OPERATOR_API = ("--api-versions", "monitoring.coreos.com/v1")
"""How `helm template` is told what it asks of a cluster elsewhere."""
READS_RULES = pytest.mark.reads("charts", "docs/runbooks.md", "e2e/cluster")
"""The chart's rules over an incident depend on these, and on what their tests import."""

Manifests = dict[tuple[str, str], dict[str, Any]]


IMAGES = ("--set", "images.operator=host/operator:1", "--set", "images.runtime=host/runtime:1")


@cache
def run_helm(helm: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [str(helm), "template", "millrace", str(CHART), "--namespace", NAMESPACE]
    command += [*IMAGES, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def render(helm: Path, *words: str) -> Manifests:
    done = run_helm(helm, *words)
    assert done.returncode == 0, done.stderr
    found = [document for document in yaml.load_all(done.stdout, yaml.CSafeLoader) if document]
    return {(document["kind"], document["metadata"]["name"]): document for document in found}
