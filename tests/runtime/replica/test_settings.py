from pathlib import Path

import pytest

from millrace_kernels.native.selection import CHOICES
from millrace_runtime import contract
from millrace_runtime.api.settings import LEAST_KEEP_ALIVE_SECONDS
from millrace_runtime.chat.model_files import NO_DEFAULTS
from millrace_runtime.replica.command import main
from millrace_runtime.replica.errors import SettingError
from millrace_runtime.replica.flags import parse_settings
from millrace_runtime.replica.http_process import read_defaults
from millrace_runtime.replica.settings import DEMO_PATH, KERNELS, ReplicaSettings, has_gpu

KEY = "-" + "A" * 42
"""One key of 64 begins like a flag, so it is written behind `=`, as the operator does."""
NAMED_KEY = f"--gateway-key={KEY}"


def test_the_defaults_serve_a_folder_under_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(contract.ENV_BIND_ADDRESS, raising=False)
    settings = parse_settings(["--model", "/models/fox", "--device", "cpu"])
    assert (settings.model_path, settings.served_name) == (Path("/models/fox"), "fox")
    assert (settings.host, settings.port, settings.live_port) == ("", 8000, 8001)
    assert (settings.max_sequences, settings.max_batched_tokens) == (32, 512)
    assert settings.kv_cache_bytes is None
    assert settings.max_model_length is None
    assert settings.target_inter_token_seconds is None


def test_weights_are_kept_as_the_files_have_them_unless_asked() -> None:
    assert parse_settings(["--demo"]).weights == "FromCheckpoint"
    assert parse_settings(["--demo", "--weights", "Int4"]).weights == "Int4"
    assert parse_settings(["--demo"]).kv_cache == "Model"
    assert parse_settings(["--demo", "--kv-cache", "Int8"]).kv_cache == "Int8"
    with pytest.raises(SettingError, match="invalid choice: 'int4'"):
        parse_settings(["--demo", "--weights", "int4"])


def test_gpus_have_larger_defaults() -> None:
    settings = parse_settings(["--model", "m", "--device", "cuda"])
    assert (settings.max_sequences, settings.max_batched_tokens) == (256, 4096)


def test_a_replica_keeps_idle_connections_longer_than_gateways_do() -> None:
    least = LEAST_KEEP_ALIVE_SECONDS
    assert parse_settings(["--demo", "--keep-alive-seconds", f"{least}"]).keep_alive_seconds == least
    with pytest.raises(SettingError, match=f"{least}"):
        parse_settings(["--demo", "--keep-alive-seconds", f"{least - 1}"])


def test_the_token_budget_grows_with_the_sequences() -> None:
    settings = parse_settings(["--model", "m", "--device", "cpu", "--max-sequences", "1000"])
    assert settings.max_batched_tokens == 1000


def test_a_pods_address_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(contract.ENV_BIND_ADDRESS, "127.3.4.5")
    assert parse_settings(["--demo"]).host == "127.3.4.5"
    assert parse_settings(["--demo", "--host", "127.0.0.1"]).host == "127.0.0.1"


def test_the_demo_is_a_model_with_a_name() -> None:
    settings = parse_settings(["--demo"])
    assert (settings.model_path, settings.served_name, settings.is_demo) == (DEMO_PATH, "stories", True)


def test_settings_survive_the_way_to_another_process() -> None:
    flags = ["--kv-cache-memory", "512Mi", "--drain-seconds", "1.5", "--allowed-origins", '["https://A.b"]']
    flags += ["--service", "team/chat", NAMED_KEY, "--gateway-key", "B" * 43]
    settings = parse_settings(["--model", "/m", *flags, "--target-inter-token-seconds", "0.04"])
    assert settings.target_inter_token_seconds == 0.04
    assert settings.allowed_origins == ("https://a.b",)
    assert (settings.service, settings.gateway_keys) == ("team/chat", (KEY, "B" * 43))
    assert settings.kv_cache_bytes == 512 * 2**20
    assert ReplicaSettings.from_json(settings.to_json()) == settings


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "one of the arguments --model --demo is required"),
        (["--demo", "--allowed-origins", "https://a.example"], "write a JSON list"),
        (["--demo", "--allowed-origins", '["https://a.example/"]'], "is no origin; write one as browsers do"),
        (["--demo", "--model", "m"], "not allowed with"),
        (["--demo", "--service", "team/chat"], "--gateway-key need each other"),
        (["--demo", NAMED_KEY], "--gateway-key need each other"),
        (["--demo", "--service", "chat", NAMED_KEY], "write its namespace and name"),
        (["--demo", "--service", "team/Chat", NAMED_KEY], "write its namespace and name"),
        (["--demo", "--service", "team/chat", NAMED_KEY + "="], "in base64url, without padding"),
        (["--demo", "--service", "team/chat", NAMED_KEY[:-1]], "in base64url, without padding"),
        (["--demo", "--port", "70000"], "'70000' is refused; write a whole number, 0 to 65535"),
        (["--demo", "--max-sequences", "0"], "'0' is refused; write a whole number, 1 to 4096"),
        (["--demo", "--max-sequences", "many"], "write a whole number"),
        (
            ["--demo", "--max-sequences", "16", "--max-batched-tokens", "8"],
            "make --max-batched-tokens at least 16",
        ),
        (["--demo", "--max-model-length", "1"], "2 to 16777216"),
        (["--demo", "--speculative-tokens", "17"], "'17' is refused; write a whole number, 0 to 16"),
        (
            ["--demo", "--kv-cache-memory", "1GB"],
            "write bytes or a number with Ki, Mi, Gi or Ti, such as 512Mi",
        ),
        (["--demo", "--kv-cache-memory", "0"], "no amount of memory"),
        (["--demo", "--drain-seconds", "-1"], "write seconds, 0 to 86400"),
        (["--demo", "--drain-seconds", "nan"], "write seconds"),
        (["--demo", "--target-inter-token-seconds", "0"], "write seconds, 0.0001 to 86400"),
        (["--demo", "--served-name", "two words"], "write 1 to 200 letters"),
        (["--demo", "--device", "tpu"], "choose from"),
        (["--demo", "--port", "9000", "--live-port", "9000"], "use two ports"),
        (["--demo", "--max-seq", "4"], "unrecognized arguments"),
    ],
)
def test_a_refused_value_says_what_to_write(argv: list[str], message: str) -> None:
    with pytest.raises(SettingError) as refusal:
        parse_settings(argv)
    assert message in str(refusal.value)


def test_bad_usage_is_a_line_and_a_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--demo", "--port", "x"]) == contract.EXIT_BAD_USAGE
    assert capsys.readouterr().err.startswith("millrace: argument --port: 'x' is refused")


def test_a_path_that_is_no_models_folder_is_a_bad_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["--model", str(tmp_path)]) == contract.EXIT_BAD_MODEL
    assert main(["--model", str(tmp_path / "file")]) == contract.EXIT_BAD_MODEL
    folder, file = capsys.readouterr().err.splitlines()
    assert "has no config.json" in folder
    assert "that is a file; --model, or spec.model.uri" in file


def test_a_gpu_is_known_by_its_device_file(tmp_path: Path) -> None:
    assert not has_gpu(tmp_path)
    (tmp_path / "nvidiactl").touch()
    assert not has_gpu(tmp_path)
    (tmp_path / "nvidia0").touch()
    assert has_gpu(tmp_path)


def test_the_flag_offers_every_kernel_there_is() -> None:
    assert KERNELS == CHOICES


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((), "the defaults of requests, from generation_config.json: temperature 0.6"),
        (
            ("--generation-config", "none"),
            "ignoring generation_config.json: --generation-config is none",
        ),
    ],
)
def test_the_log_says_whose_sampling_counts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, flags: tuple[str, ...], said: str
) -> None:
    settings = parse_settings(["--model", str(tmp_path), *flags])
    assert read_defaults(settings) == NO_DEFAULTS
    assert caplog.messages == []
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.6}')
    with caplog.at_level("INFO"):
        assert read_defaults(settings).temperature == (None if flags else 0.6)
    assert caplog.messages == [said]
