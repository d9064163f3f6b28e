import base64
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from millrace_kubernetes.access import ClusterAccess, load_access, load_kubeconfig
from millrace_kubernetes.errors import AccessError, KubeconfigError


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("pair")
    certificate, key = folder / "tls.crt", folder / "tls.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    command += ["-subj", "/CN=test", "-days", "2", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key


def write_kubeconfig(path: Path, cluster: dict[str, Any], user: dict[str, Any]) -> dict[str, str]:
    document = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "ns"}}],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(yaml.safe_dump(document))
    return {"KUBECONFIG": str(path)}


def encode(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


async def test_a_pod_uses_its_service_account(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    (tmp_path / "ca.crt").write_bytes(pair[0].read_bytes())
    (tmp_path / "token").write_text("abc\n")
    (tmp_path / "namespace").write_text("millrace-system")
    environ = {"KUBERNETES_SERVICE_HOST": "127.96.0.1", "KUBERNETES_SERVICE_PORT": "6443"}
    access = load_access(environ, tmp_path)
    assert (access.server, access.namespace) == ("https://127.96.0.1:6443", "millrace-system")
    assert await access.headers() == {"Authorization": "Bearer abc"}
    (tmp_path / "token").write_text("renewed")
    assert await access.headers() == {"Authorization": "Bearer renewed"}
    assert (
        load_access(environ | {"KUBERNETES_SERVICE_HOST": "fd00::1"}, tmp_path).server
        == "https://[fd00::1]:6443"
    )


def test_a_broken_service_account_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("abc")
    with pytest.raises(AccessError, match="is not whole"):
        load_access({"KUBERNETES_SERVICE_HOST": "h"}, tmp_path)


async def test_a_kubeconfig_with_inline_certificates(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    cluster = {"server": "https://127.0.0.1:6443/", "certificate-authority-data": encode(pair[0])}
    user = {"client-certificate-data": encode(pair[0]), "client-key-data": encode(pair[1])}
    access = load_access(write_kubeconfig(tmp_path / "config", cluster, user), tmp_path)
    assert (access.server, await access.headers()) == ("https://127.0.0.1:6443", {})
    assert access.tls.verify_mode == ssl.CERT_REQUIRED
    assert len(access.tls.get_ca_certs()) == 1


def test_a_kubeconfig_says_nothing_of_the_namespace_we_run_in(tmp_path: Path) -> None:
    environ = write_kubeconfig(tmp_path / "config", {"server": "http://h"}, {"token": "t"})
    assert load_access(environ, tmp_path).namespace is None


async def test_a_kubeconfig_with_files_beside_it_and_a_token(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    (tmp_path / "ca.pem").write_bytes(pair[0].read_bytes())
    cluster = {"server": "https://h", "certificate-authority": "ca.pem"}
    access = load_access(write_kubeconfig(tmp_path / "config", cluster, {"token": "abc"}), tmp_path)
    assert await access.headers() == {"Authorization": "Bearer abc"}
    (tmp_path / "token-here").write_text("def")
    access = load_access(
        write_kubeconfig(tmp_path / "config", cluster, {"tokenFile": "token-here"}), tmp_path
    )
    assert await access.headers() == {"Authorization": "Bearer def"}


def test_verification_can_be_switched_off_and_plain_http_needs_none(tmp_path: Path) -> None:
    cluster = {"server": "https://h", "insecure-skip-tls-verify": True}
    access = load_access(write_kubeconfig(tmp_path / "config", cluster, {"token": "t"}), tmp_path)
    assert access.tls.verify_mode == ssl.CERT_NONE
    access = load_access(
        write_kubeconfig(tmp_path / "config", {"server": "http://h"}, {"token": "t"}), tmp_path
    )
    assert access.tls is None


@pytest.mark.parametrize(
    ("cluster", "user", "message"),
    [
        ({}, {"token": "t"}, "lacks 'server'"),
        ({"server": "https://h"}, {"exec": {"command": "aws"}}, "signs in by a command"),
        ({"server": "https://h", "certificate-authority-data": "???"}, {"token": "t"}, "can't be used"),
        ({"server": "https://h", "certificate-authority": "absent"}, {"token": "t"}, "can't be used"),
    ],
)
def test_what_a_kubeconfig_lacks_is_named(
    tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any], message: str
) -> None:
    with pytest.raises(AccessError, match=message):
        load_access(write_kubeconfig(tmp_path / "config", cluster, user), tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "- 1",
        "current-context: x",
        "current-context: x\ncontexts: []",
        "current-context: x\ncontexts: [1]",
        "{",
    ],
)
def test_a_file_that_is_no_kubeconfig_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "config").write_text(text)
    with pytest.raises(AccessError, match=r"lacks|has no|no kubeconfig|can't be read"):
        load_access({"KUBECONFIG": str(tmp_path / "config")}, tmp_path)


def test_without_any_credentials_it_says_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(AccessError, match="set KUBECONFIG"):
        load_access({"KUBECONFIG": str(tmp_path / "absent")}, tmp_path)


async def test_a_kubeconfig_by_path_leaves_the_advice_to_the_caller(tmp_path: Path) -> None:
    path = tmp_path / "config"
    with pytest.raises(KubeconfigError, match=r"can't be read \(.*\)$"):
        load_kubeconfig(path)
    path.write_text("current-context: x\ncontexts: [1]")
    with pytest.raises(KubeconfigError, match=r"is YAML, but no kubeconfig \(.*\)$"):
        load_kubeconfig(path)
    write_kubeconfig(path, {"server": "http://127.0.0.1:1/"}, {"token": "abc"})
    access = load_kubeconfig(path)
    assert (access.server, await access.headers()) == ("http://127.0.0.1:1", {"Authorization": "Bearer abc"})


@pytest.mark.parametrize(
    "content", [b"\xff\xfe", b"two\nlines", b"a\rb", b"nul\0", "café".encode(), b"\x7f"], ids=range(6)
)
async def test_what_can_be_no_token_is_an_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(AccessError, match=r"token in .*/token .* visible ASCII"):
        await ClusterAccess("http://h", None, token_file=path).headers()
    with pytest.raises(AccessError, match=r"token of the kubeconfig .* visible ASCII"):
        await ClusterAccess("http://h", None, token=content.decode(errors="surrogateescape")).headers()


def test_a_kubeconfig_that_is_no_text_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_bytes(b"\xff\xfe\0")
    with pytest.raises(KubeconfigError, match="can't be read"):
        load_kubeconfig(path)
    with pytest.raises(AccessError, match="set KUBECONFIG to one"):
        load_access({"KUBECONFIG": str(path)}, tmp_path)


def test_a_namespace_that_is_no_text_is_an_error(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    (tmp_path / "ca.crt").write_bytes(pair[0].read_bytes())
    (tmp_path / "token").write_text("abc")
    (tmp_path / "namespace").write_bytes(b"\xff")
    with pytest.raises(AccessError, match="is not whole"):
        load_access({"KUBERNETES_SERVICE_HOST": "h"}, tmp_path)
