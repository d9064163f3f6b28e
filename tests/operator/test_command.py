from pathlib import Path

import pytest

from millrace_operator.command import build_parser, main


def test_every_flag_is_explained() -> None:
    bare = [action.option_strings for action in build_parser()._actions if not action.help]
    assert bare == []


@pytest.mark.parametrize(
    "argv", [["--tick-seconds", "0"], ["--scale-down-window-seconds", "0"], ["--workers", "0"]]
)
def test_values_that_cannot_be_are_refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 64
    assert "write --tick-seconds above 0" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--port", "--gateway-port"])
@pytest.mark.parametrize("port", ["99999", "-1", "http"])
def test_what_is_no_port_is_refused(flag: str, port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        build_parser().parse_args([f"{flag}={port}"])
    assert f"a port is a number from 0 to 65535, not '{port}'" in capsys.readouterr().err


def test_a_gateway_has_a_port_that_clients_can_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        build_parser().parse_args(["--gateway-port=0"])
    assert "the gateway's port is a number from 1 to 65535, not '0'" in capsys.readouterr().err
    assert build_parser().parse_args(["--port=0"]).port == 0


def test_without_a_cluster_it_says_what_to_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    assert main([]) == 1
    assert "set KUBECONFIG" in capsys.readouterr().err
