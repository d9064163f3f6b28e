from pathlib import Path

import pytest

from millrace_fit.kv_budget import Budget, plan_text_memory
from millrace_runtime.execution.host import measure_usable_memory

GIB = 1 << 30
VERSION_2 = ("memory.max", "memory.current", "")
VERSION_1 = ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_")
Files = tuple[str, str, str]


class Host:
    """A machine with 16 GiB free, and its cgroups."""

    def __init__(self, path: Path) -> None:
        self.cgroups, self.meminfo, self.membership = path / "fs", path / "meminfo", path / "cgroup"
        self.meminfo.write_text(f"MemTotal: 99 kB\nMemAvailable: {16 * GIB // 1024} kB\n")

    def limit(self, files: Files, limit: object, used: int, cache: int = 0, group: str = "") -> Path:
        """Give a group a limit; return the file that says it."""
        limit_file, used_file, prefix = files
        folder = (self.cgroups / limit_file).parent / group
        folder.mkdir(parents=True, exist_ok=True)
        (folder / Path(limit_file).name).write_text(f"{limit}\n")
        (folder / Path(used_file).name).write_text(f"{used}\n")
        stat = {"anon": 7, f"{prefix}inactive_file": cache - cache // 4, f"{prefix}active_file": cache // 4}
        (folder / "memory.stat").write_text("".join(f"{name} {value}\n" for name, value in stat.items()))
        return folder / Path(limit_file).name

    def usable(self, text_bytes: int = 0) -> Budget:
        return measure_usable_memory(text_bytes, self.cgroups, self.meminfo, self.membership)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_half_of_what_a_machine_without_a_limit_has_free(host: Host) -> None:
    assert host.usable() == (8 * GIB, "0.5 of the free memory of the machine", True)
    host.limit(VERSION_2, "max", 5)
    assert host.usable().num_bytes == 8 * GIB


@pytest.mark.parametrize("files", [VERSION_2, VERSION_1])
def test_most_of_what_a_cgroup_leaves(host: Host, files: Files) -> None:
    file = host.limit(files, 4 * GIB, GIB)
    assert host.usable() == (int(3 * GIB * 0.8), f"0.8 of the free memory within {file}", False)


def test_what_the_text_worker_may_take_is_left_alone(host: Host) -> None:
    beside = f"beside {GIB} for the text worker"
    assert host.usable(GIB) == (int(7.5 * GIB), f"0.5 of the free memory of the machine {beside}", True)
    file = host.limit(VERSION_2, 4 * GIB, 2 * GIB)
    assert host.usable(GIB) == (int(GIB * 0.8), f"0.8 of the free memory within {file} {beside}", False)
    assert host.usable(3 * GIB).num_bytes == 0


@pytest.mark.parametrize("pod", [GIB // 2, GIB, 2 * GIB, 4 * GIB, 16 * GIB])
@pytest.mark.parametrize("loaded", [0.2, 0.4, 0.75])
def test_cache_and_text_worker_together_stay_within_the_limit(host: Host, pod: int, loaded: float) -> None:
    host.meminfo.write_text(f"MemAvailable: {64 * GIB // 1024} kB\n")
    host.limit(VERSION_2, pod, 0)
    text = plan_text_memory(host.usable().num_bytes)
    assert 0 < text <= pod // 2
    host.limit(VERSION_2, pod, int(pod * loaded))
    cache = host.usable(text).num_bytes
    assert cache == 0 or int(pod * loaded) + cache + text <= pod


@pytest.mark.parametrize("files", [VERSION_2, VERSION_1])
def test_page_cache_is_not_used_memory(host: Host, files: Files) -> None:
    """A checkpoint that was just read fills it up to the limit."""
    host.limit(files, 4 * GIB, 4 * GIB, cache=3 * GIB)
    assert host.usable().num_bytes == int(3 * GIB * 0.8)


@pytest.mark.parametrize(
    ("files", "line"), [(VERSION_2, "0::/pods/one"), (VERSION_1, "4:cpu,cpuacct:/\n5:memory:/pods/one")]
)
def test_the_tightest_of_our_group_and_those_above_it_counts(host: Host, files: Files, line: str) -> None:
    host.membership.write_text(f"{line}\n")
    own = host.limit(files, 6 * GIB, GIB, group="pods/one")
    assert host.usable().source.endswith(f"within {own}")
    above = host.limit(files, 7 * GIB, 4 * GIB, group="pods")
    host.limit(files, 2 * GIB, GIB, group="pods/two")
    assert host.usable() == (int(3 * GIB * 0.8), f"0.8 of the free memory within {above}", False)


def test_a_path_of_the_host_that_is_not_mounted_here_leaves_the_root(host: Host) -> None:
    host.membership.write_text("5:memory:/kubepods/burstable/pod1/2f\n")
    host.limit(VERSION_1, 4 * GIB, GIB)
    assert host.usable().num_bytes == int(3 * GIB * 0.8)


def test_a_limit_above_what_is_free_means_nothing(host: Host) -> None:
    host.limit(VERSION_2, 1 << 60, 0)
    assert host.usable().num_bytes == 8 * GIB
