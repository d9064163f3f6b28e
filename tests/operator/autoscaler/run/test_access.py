"""Credentials and certificates for Prometheus. `e2e/test_prometheus.py` uses them over TLS."""

import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

from millrace_operator.autoscaler.run.settings import Access, PrometheusSettings, SettingError

URL = "https://thanos.example:9091/prefix"


def write(folder: Path, **texts: str) -> dict[str, Path]:
    for name, text in texts.items():
        folder.joinpath(name).write_text(text)
    return {name: folder / name for name in texts}


def test_a_name_and_a_password_are_sent_as_basic_authentication(tmp_path: Path) -> None:
    files = write(tmp_path, username_file="Aladdin\n", password_file="open sesame\n")
    headers = Access(PrometheusSettings(URL, **files)).headers()  # type: ignore[arg-type]
    assert headers == {"Authorization": "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="}


def test_headers_come_from_a_file_a_line_each(tmp_path: Path) -> None:
    files = write(tmp_path, headers_file="X-Api-Key: a:b\n\nX-Team:  c \n")
    assert Access(PrometheusSettings(URL, **files)).headers() == {"X-Api-Key": "a:b", "X-Team": "c"}  # type: ignore[arg-type]


@pytest.mark.parametrize("line", ["secret", ": secret", "X Y: secret", "X: sec\x01ret"])
def test_what_is_no_header_is_refused_by_its_line_and_not_shown(tmp_path: Path, line: str) -> None:
    files = write(tmp_path, headers_file=f"X-Fine: 1\n{line}\n")
    with pytest.raises(SettingError, match=r"line 2 of .*headers_file: write Name: value") as refused:
        Access(PrometheusSettings(URL, **files)).headers()  # type: ignore[arg-type]
    assert "sec" not in str(refused.value).replace(str(tmp_path), "")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"url": "prometheus:9090"}, "begins with http:// or https://"),
        ({"url": "http://"}, "begins with http:// or https://"),
        ({"url": "http://host:port"}, "begins with http:// or https://"),
        ({"url": "http://user:secret@host"}, "--prometheus-password-file"),
        ({"url": "http://host/?tenant=a"}, "the part before /api/v1"),
        ({"url": "http://host", "ca_file": Path("ca")}, "write https://"),
        ({"url": "http://host", "is_insecure": True}, "write https://"),
        ({"username_file": Path("a")}, "--prometheus-password-file"),
        ({"key_file": Path("a")}, "--prometheus-certificate-file"),
        ({"token_file": Path("a"), "username_file": Path("b"), "password_file": Path("c")}, "not both"),
        ({"ca_file": Path("a"), "is_insecure": True}, "not both"),
        ({"matchers": '} or vector(1) or {a="b"'}, "write it as in PromQL"),
        ({"matchers": "cluster=eu"}, "write it as in PromQL"),
        ({"tenant": "a\nb"}, "--prometheus-tenant"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError) as refused:
        PrometheusSettings(**{"url": URL, **settings})
    assert message in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "matchers", ['cluster="eu"', 'cluster=~"eu|us", env!="test"', r'a="quoted \" brace }"']
)
def test_matchers_are_those_of_promql(matchers: str) -> None:
    assert PrometheusSettings(URL, matchers).matchers == matchers


def test_certificates_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    files = write(tmp_path, ca_file="no certificate")
    with pytest.raises(SettingError, match=r"ca_file: .*; write PEM files"):
        Access(PrometheusSettings(URL, **files)).trust()  # type: ignore[arg-type]


def test_whom_to_trust_is_found_out_once() -> None:
    access = Access(PrometheusSettings(URL))
    assert access.trust() is access.trust()
    assert Access(PrometheusSettings("http://host")).trust() is True


def make_authority(folder: Path, name: str) -> Path:
    """Return the certificate of an authority that signs itself."""
    path, key = folder / f"{name}.crt", folder / f"{name}.key"
    subject = ["-subj", f"/CN={name}", "-days", "2"]
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    subprocess.run([*words, "-keyout", key, "-out", path, *subject], check=True, capture_output=True)
    return path


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")
def test_whom_to_trust_is_read_again_when_the_file_is_renewed(tmp_path: Path) -> None:
    first, second = (make_authority(tmp_path, name) for name in ("first", "second"))
    ca_file = tmp_path / "ca.crt"
    ca_file.write_text(first.read_text())
    access = Access(PrometheusSettings(URL, ca_file=ca_file))
    before = access.trust()
    assert access.trust() is before
    ca_file.write_text(second.read_text() + "\n")
    after = access.trust()
    assert isinstance(before, ssl.SSLContext)
    assert isinstance(after, ssl.SSLContext)
    [found] = [dict(pair[0] for pair in one["subject"])["commonName"] for one in after.get_ca_certs()]  # type: ignore[union-attr, index, misc]
    assert (found, before is after) == ("second", False)


def test_an_insecure_connection_asks_for_no_certificate() -> None:
    context = Access(PrometheusSettings(URL, is_insecure=True)).trust()
    assert isinstance(context, ssl.SSLContext)
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_NONE, False)
    usual = Access(PrometheusSettings(URL)).trust()
    assert isinstance(usual, ssl.SSLContext)
    assert (usual.verify_mode, usual.check_hostname) == (ssl.CERT_REQUIRED, True)
