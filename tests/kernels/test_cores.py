from pathlib import Path

from millrace_kernels.native.cores import count_threads


def test_one_thread_a_physical_core(tmp_path: Path) -> None:
    for cpu in range(4):
        folder = tmp_path / f"devices/system/cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{cpu % 2},{cpu % 2 + 2}\n")
    assert count_threads(8, range(4), tmp_path) == 2
    assert count_threads(8, (0, 2), tmp_path) == 1
    assert count_threads(1, range(4), tmp_path) == 1


def test_a_cpu_without_topology_is_a_core(tmp_path: Path) -> None:
    assert count_threads(8, range(3), tmp_path) == 3
