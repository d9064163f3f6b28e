from pathlib import Path

import pytest

from millrace_runtime.execution.host import ENV_CPU_LIMIT, build_thread_environment, read_num_cpus


@pytest.fixture(autouse=True)
def _sixteen_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(16)))


@pytest.mark.parametrize(
    ("quota", "cpus"), [("max 100000", 16), ("250000 100000", 3), ("30000 100000", 1), ("9900000 100000", 16)]
)
def test_a_version_2_quota(tmp_path: Path, quota: str, cpus: int) -> None:
    (tmp_path / "cpu.max").write_text(f"{quota}\n")
    assert read_num_cpus({}, tmp_path) == cpus


@pytest.mark.parametrize(("quota", "cpus"), [("-1", 16), ("400000", 4)])
def test_a_version_1_quota(tmp_path: Path, quota: str, cpus: int) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text(quota)
    (tmp_path / "cpu/cpu.cfs_period_us").write_text("100000")
    assert read_num_cpus({}, tmp_path) == cpus


@pytest.mark.parametrize(
    ("line", "folder", "files"),
    [
        ("0::/", "", {"cpu.max": "{} 100000"}),
        ("3:cpuset:/\n1:cpu,cpuacct:/", "cpu", {"cpu.cfs_quota_us": "{}", "cpu.cfs_period_us": "100000"}),
    ],
)
@pytest.mark.parametrize(("own", "above", "cpus"), [(200_000, 900_000, 2), (900_000, 400_000, 4)])
def test_the_tightest_of_our_group_and_those_above_it_counts(  # noqa: PLR0917
    tmp_path: Path, line: str, folder: str, files: dict[str, str], own: int, above: int, cpus: int
) -> None:
    for group, quota in {"system.slice/one": own, "system.slice": above, "system.slice/two": 100_000}.items():
        (tmp_path / folder / group).mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (tmp_path / folder / group / name).write_text(content.format(quota))
    (tmp_path / "membership").write_text(f"{line}system.slice/one\n")
    assert read_num_cpus({}, tmp_path, tmp_path / "membership") == cpus


@pytest.mark.parametrize(("text", "cpus"), [("0.5", 1), ("2", 2), ("64", 16), ("lots", 16), ("0", 16)])
def test_a_limit_from_the_environment(tmp_path: Path, text: str, cpus: int) -> None:
    assert read_num_cpus({ENV_CPU_LIMIT: text}, tmp_path) == cpus


def test_waiting_threads_sleep_and_the_user_has_the_last_word() -> None:
    environment = build_thread_environment({"OMP_NUM_THREADS": "7", "HOME": "/"}, 2)
    assert environment == {
        "OMP_WAIT_POLICY": "PASSIVE",
        "GOMP_SPINCOUNT": "0",
        "OMP_NUM_THREADS": "7",
        "HOME": "/",
    }
    assert build_thread_environment({}, 2)["OMP_NUM_THREADS"] == "2"
