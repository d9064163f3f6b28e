"""The runtime's versions, from the chart's values to the operator's flags."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from millrace_operator.app.command import build_parser
from tests.monitoring.chart import render, run_helm

pytestmark = pytest.mark.slow


def read_versions(helm: Path, *words: str) -> dict[str, str]:
    deployment = render(helm, *words)["Deployment", "millrace-operator"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return dict(build_parser().parse_args(container["args"][1:]).runtime_version)


def test_a_plain_install_lists_none(programs: Mapping[str, Path]) -> None:
    assert read_versions(programs["helm"]) == {}


def test_the_operator_knows_the_versions_of_the_values(programs: Mapping[str, Path], tmp_path: Path) -> None:
    images = {"0.1.0": "host:5000/runtime:0.1.0", "0.2.0-rc.1": "host/runtime@sha256:12ab"}
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump({"images": {"runtimeVersions": images}}))
    assert read_versions(programs["helm"], "--values", str(values)) == images


def test_a_version_can_be_set_with_escaped_dots(programs: Mapping[str, Path]) -> None:
    words = ("--set", r"images.runtimeVersions.0\.1\.0=host/runtime:0.1.0")
    assert read_versions(programs["helm"], *words) == {"0.1.0": "host/runtime:0.1.0"}


@pytest.mark.parametrize("setting", ["-1=image", "0=my image", "0=", "a b=image"])
def test_what_names_no_image_is_refused(programs: Mapping[str, Path], setting: str) -> None:
    done = run_helm(programs["helm"], "--set", f"images.runtimeVersions.{setting}")
    assert done.returncode != 0
    assert "/images/runtimeVersions" in done.stderr
