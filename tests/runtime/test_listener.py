"""Real sockets, on both families where this machine has them."""

import errno
import select
import socket
from collections.abc import Mapping

import pytest

from millrace_runtime.listener import (
    describe_failure,
    local_url,
    open_listener,
    read_bind_address,
    show_address,
)
from testing.addresses import needs_ipv6


def reached(listener: socket.socket) -> list[str]:
    """Those of some loopback addresses at which the listener answers, and nobody else does."""
    port = listener.getsockname()[1]
    return [address for address in ("127.0.0.1", "127.0.0.2", "::1") if is_reached(listener, (address, port))]


def is_reached(listener: socket.socket, address: tuple[str, int]) -> bool:
    try:
        with socket.create_connection(address, timeout=5) as client:
            if not select.select([listener], [], [], 1)[0]:
                return False
            accepted, peer = listener.accept()
            accepted.close()
            return bool(peer[1] == client.getsockname()[1])
    except OSError:
        return False


@needs_ipv6
def test_without_an_address_it_listens_on_all_of_both_families() -> None:
    with open_listener("", 0) as listener:
        assert reached(listener) == ["127.0.0.1", "127.0.0.2", "::1"]
        assert local_url(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize(
    ("address", "answering"),
    [
        ("127.0.0.1", ["127.0.0.1"]),
        ("127.0.0.2", ["127.0.0.2"]),
        ("localhost", ["127.0.0.1"]),
        ("0.0.0.0", ["127.0.0.1", "127.0.0.2"]),
        pytest.param("::1", ["::1"], marks=needs_ipv6),
        pytest.param("::", ["127.0.0.1", "127.0.0.2", "::1"], marks=needs_ipv6),
    ],
)
def test_an_address_is_taken_as_it_is(address: str, answering: list[str]) -> None:
    with open_listener(address, 0) as listener:
        assert reached(listener) == answering


def make_socket_without_ipv6(family: socket.AddressFamily, kind: socket.SocketKind) -> socket.socket:
    if family == socket.AF_INET6:
        raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
    return socket.socket(family, kind)


class SwitchedOff(socket.socket):
    """A socket of a kernel whose IPv6 has no address, not even the unspecified one."""

    def bind(self, address: object) -> None:
        if self.family == socket.AF_INET6:
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
        super().bind(address)  # type: ignore[arg-type]


@pytest.mark.parametrize("make_socket", [make_socket_without_ipv6, SwitchedOff])
def test_a_kernel_without_ipv6_listens_on_ipv4(make_socket: type[socket.socket]) -> None:
    with open_listener("", 0, make_socket) as listener:
        assert reached(listener) == ["127.0.0.1", "127.0.0.2"]
    with pytest.raises(OSError, match=r"not supported|Cannot assign"):
        open_listener("::1", 0, make_socket)


def test_a_taken_port_is_no_reason_for_the_other_family() -> None:
    with (
        open_listener("", 0) as taken,
        pytest.raises(OSError, match="already in use"),
    ):
        open_listener("", taken.getsockname()[1])


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            OSError(errno.EADDRINUSE, "in use"),
            "in use; end the process that listens there, or give another --live-port",
        ),
        (OSError(errno.EACCES, "denied"), "denied; give another --live-port"),
        (
            OSError(errno.EADDRNOTAVAIL, "absent"),
            "absent; give another address with --host or MILLRACE_BIND_ADDRESS",
        ),
        (OSError("odd"), "odd; give another address with --host or MILLRACE_BIND_ADDRESS"),
    ],
    ids=["taken", "not allowed", "not here", "without a number"],
)
def test_a_failure_says_what_to_do(error: OSError, said: str) -> None:
    assert describe_failure(error, "", 80, port_flag="--live-port") == f"can't listen on *:80: {said}"


def test_a_command_without_a_host_flag_names_only_the_variable() -> None:
    with pytest.raises(OSError, match="Cannot assign") as caught:
        open_listener("192.0.2.1", 0)
    said = describe_failure(caught.value, "192.0.2.1", 0, address_setting="MILLRACE_BIND_ADDRESS")
    assert said.endswith("; give another address with MILLRACE_BIND_ADDRESS")


@pytest.mark.parametrize(
    ("environment", "address"),
    [({}, ""), ({"MILLRACE_BIND_ADDRESS": ""}, ""), ({"MILLRACE_BIND_ADDRESS": "127.3.4.5"}, "127.3.4.5")],
)
def test_the_environment_may_give_the_address(environment: Mapping[str, str], address: str) -> None:
    assert read_bind_address(environment) == address


def test_an_ipv6_address_stands_in_brackets() -> None:
    assert show_address("127.0.0.1", 80) == "127.0.0.1:80"
    assert show_address("fd00::7", 80) == "[fd00::7]:80"
    assert show_address("", 80) == "*:80"


@needs_ipv6
def test_the_url_of_an_ipv6_listener_stands_in_brackets() -> None:
    with open_listener("::1", 0) as listener:
        assert local_url(listener) == f"http://[::1]:{listener.getsockname()[1]}"
