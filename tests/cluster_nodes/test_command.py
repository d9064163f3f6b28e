import subprocess
import sys
from pathlib import Path

import pytest

from e2e.cluster.nodes.__main__ import build_parser, parse_settings
from e2e.cluster.nodes.errors import ImageError, SettingsError
from e2e.cluster.nodes.images import load_image
from e2e.cluster.nodes.logs_server import CertificateFiles, load_certificate
from e2e.cluster.nodes.settings import SOURCE_ROOT

pytestmark = pytest.mark.reads("e2e/cluster", "images", "operator/millrace_kubernetes")

TLS = ("--tls-certificate", "absent.crt", "--tls-key", "absent.key")
COMMAND = [sys.executable, "-m", "e2e.cluster.nodes"]


def arguments(tmp_path: Path, *more: str) -> list[str]:
    return ["--kubeconfig", str(tmp_path / "kubeconfig"), "--state-dir", str(tmp_path / "state"), *TLS, *more]


def test_settings_come_from_flags(tmp_path: Path) -> None:
    nodes = ("--node", "name=a,gpus=2", "--node", "name=b")
    words = arguments(tmp_path, *nodes, "--hide", str(tmp_path))
    settings = parse_settings(build_parser().parse_args(words))
    assert [node.name for node in settings.nodes] == ["a", "b"]
    assert settings.hidden == (tmp_path,)


def test_two_nodes_of_one_name_are_refused(tmp_path: Path) -> None:
    words = arguments(tmp_path, "--node", "name=a", "--node", "name=a")
    with pytest.raises(SettingsError, match="the same name"):
        parse_settings(build_parser().parse_args(words))


def test_a_certificate_that_can_not_be_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"--tls-certificate .*absent can't be used"):
        load_certificate(CertificateFiles(tmp_path / "absent", tmp_path / "absent"))


def test_a_missing_kubeconfig_is_one_line(tmp_path: Path) -> None:
    words = [*COMMAND, *arguments(tmp_path, "--node", "name=a")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=SOURCE_ROOT)
    assert done.returncode == 1
    assert done.stderr.strip().startswith("process nodes: --kubeconfig: the kubeconfig")
    assert len(done.stderr.strip().splitlines()) == 1


def test_the_products_images_are_what_nodes_can_run() -> None:
    for name in ("operator", "runtime"):
        try:
            image = load_image(f"millrace/{name}:0.1.0", [SOURCE_ROOT / "images"])
        except ImageError as error:
            pytest.fail(str(error))
        assert image.entrypoint == ("dumb-init", "--single-child", "--", "millrace")
        assert all(source.exists() for source, _ in image.copies)
