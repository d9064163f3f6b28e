from pathlib import Path

import pytest

from millrace_runtime.execution.memory import usable_bytes

GIB = 1 << 30


@pytest.fixture
def meminfo(tmp_path: Path) -> Path:
    file = tmp_path / "meminfo"
    file.write_text(f"MemTotal: 99 kB\nMemAvailable: {16 * GIB // 1024} kB\n")
    return file


def test_half_of_what_a_machine_without_a_limit_has_free(tmp_path: Path, meminfo: Path) -> None:
    assert usable_bytes(tmp_path, meminfo) == 8 * GIB
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("5\n")
    assert usable_bytes(tmp_path, meminfo) == 8 * GIB


@pytest.mark.parametrize(
    "files",
    [
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ],
)
def test_most_of_what_a_cgroup_leaves(tmp_path: Path, meminfo: Path, files: tuple[str, str]) -> None:
    for name, value in zip(files, (4 * GIB, GIB), strict=True):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{value}\n")
    assert usable_bytes(tmp_path, meminfo) == int(3 * GIB * 0.8)


def test_a_limit_above_what_is_free_means_nothing(tmp_path: Path, meminfo: Path) -> None:
    (tmp_path / "memory.max").write_text(str(1 << 60))
    (tmp_path / "memory.current").write_text("0")
    assert usable_bytes(tmp_path, meminfo) == 8 * GIB
