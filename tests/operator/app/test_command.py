import importlib.metadata
from decimal import Decimal
from pathlib import Path

import pytest

from millrace_operator.app.command import build_parser, main, read_render_settings


def test_every_flag_is_explained() -> None:
    bare = [action.option_strings for action in build_parser()._actions if not action.help]
    assert bare == []


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--tick-seconds", "0"], "write --tick-seconds above 0 and up to 5\n"),
        (["--tick-seconds", "5.1"], "write --tick-seconds above 0 and up to 5\n"),
        (["--tick-seconds", "nan"], "write --tick-seconds above 0 and up to 5\n"),
        (["--scale-down-window-seconds", "0"], "write --scale-down-window-seconds above 0\n"),
        (["--scale-down-window-seconds", "inf"], "write --scale-down-window-seconds above 0\n"),
        (["--workers", "0"], "write --workers and --writes-per-second of at least 1\n"),
        (["--writes-per-second", "0"], "write --workers and --writes-per-second of at least 1\n"),
    ],
)
def test_values_that_cannot_be_are_refused(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 64
    assert capsys.readouterr().err == f"millrace operator: {said}"


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


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--prometheus-url=http://me:secret@host"], "write --prometheus-username-file"),
        (["--prometheus-username-file=u"], "write --prometheus-username-file and --prometheus-password-file"),
        (["--prometheus-insecure"], "write https://"),
        (["--prometheus-matchers=eu"], 'write it as in PromQL: cluster="eu"'),
    ],
)
def test_ways_to_prometheus_that_cannot_be_are_refused(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 64
    told = capsys.readouterr().err
    assert said in told
    assert "secret" not in told


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--resource-hour=nvidia.com/gpu", "names no price; write NAME=PRICE such as nvidia.com/gpu=2.50"),
        ("--resource-hour==2.50", "names no price"),
        ("--resource-hour=cpu=1,50", "'1,50' is no price of an hour; write decimal text such as 2.50"),
        ("--resource-hour=cpu=-1", "is no price of an hour"),
        ("--resource-hour=cpu=1e3", "is no price of an hour"),
        ("--currency=dollar", "'dollar' is no currency; write three capital letters such as USD"),
        ("--currency=USD\n", "is no currency"),
    ],
)
def test_prices_that_are_none_are_refused(flag: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        build_parser().parse_args([flag])
    assert said in capsys.readouterr().err


def test_prices_are_read_by_the_resource_s_name() -> None:
    words = ["--resource-hour", "nvidia.com/gpu=2.50", "--resource-hour=cpu=0.04", "--currency=EUR"]
    arguments = build_parser().parse_args(words)
    assert dict(arguments.resource_hour) == {"nvidia.com/gpu": Decimal("2.50"), "cpu": Decimal("0.04")}
    assert arguments.currency == "EUR"


@pytest.mark.parametrize(
    "flag",
    ["0.2.0", "0.2.0=", "=image", "0.2.0=my image", "one two=image", "-1=image", f"{'1' * 65}=image"],
)
def test_a_version_has_an_image(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        build_parser().parse_args([f"--runtime-version={flag}"])
    assert "write VERSION=IMAGE such as 0.2.0=registry.example.com/runtime:0.2.0" in capsys.readouterr().err


def test_images_are_known_by_version_and_the_default_one_by_our_own() -> None:
    own = importlib.metadata.version("millrace")
    words = ["--runtime-image=host:5000/runtime:1", "--runtime-version", "9.2.0=host:5000/runtime@sha256:1a"]
    settings = read_render_settings(build_parser().parse_args(words))
    assert settings.runtime_versions == {own: "host:5000/runtime:1", "9.2.0": "host:5000/runtime@sha256:1a"}
    words += [f"--runtime-version={own}=listed"]
    assert read_render_settings(build_parser().parse_args(words)).find_image(own) == "listed"


def test_without_a_cluster_it_says_what_to_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    assert main([]) == 1
    assert "set KUBECONFIG" in capsys.readouterr().err


def test_two_processes_of_a_pod_are_two_holders_of_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POD_NAME", "operator-0")
    first, second = (build_parser().parse_args([]).identity for _ in range(2))
    assert first != second
    assert first.startswith("operator-0_")
