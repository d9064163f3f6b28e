import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_gateway.route.objects import ServiceKey
from millrace_gateway.route.routing import parse_host

LABELS = st.from_regex(r"[a-z]([-a-z0-9]{0,10}[a-z0-9])?", fullmatch=True)


@given(
    LABELS, LABELS, st.sampled_from(["", ".svc", ".svc.cluster.local"]), st.sampled_from(["", ":80", ":8080"])
)
def test_every_way_to_write_a_service_is_understood(
    name: str, namespace: str, suffix: str, port: str
) -> None:
    for host in (f"{name}.{namespace}{suffix}{port}", f"{name}.{namespace}{suffix}{port}".upper()):
        assert parse_host(host, "cluster.local") == (ServiceKey(namespace, name), bool(suffix))


@given(st.text())
def test_any_text_is_read_without_an_error(host: str) -> None:
    parse_host(host, "cluster.local")


@pytest.mark.parametrize(
    "host",
    [
        "",
        "localhost",
        "localhost:8080",
        "127.0.0.1:8080",
        "10.1",
        "[::1]:8080",
        "a.b.c",
        "a.b.svc.other.domain",
        "a.b.pod",
        ".b",
        "a..svc",
        "-a.b",
        "a_b.c",
    ],
)
def test_other_hosts_leave_it_to_the_model(host: str) -> None:
    assert parse_host(host, "cluster.local") is None


def test_a_trailing_dot_and_another_cluster_domain_are_understood() -> None:
    assert parse_host("a.b.svc.corp.example.:80", "Corp.Example") == (ServiceKey("b", "a"), True)
