"""The memory that packed weights lie in."""

import mmap
import re
from pathlib import Path

import pytest

from millrace_kernels.native.weights.packing import Arena

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def read_mapping(address: int) -> dict[str, str]:
    """Return what the kernel says of the mapping at an address: the lines of /proc/self/smaps."""
    lines = Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines()
    heads = [number for number, line in enumerate(lines) if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line)]
    for begin, end in zip(heads, [*heads[1:], len(lines)], strict=True):
        first, last = (int(bound, 16) for bound in lines[begin].split()[0].split("-"))
        if first <= address < last:
            return dict(line.split(":", 1) for line in lines[begin + 1 : end])
    pytest.fail("no mapping has the address")


@pytest.mark.skipif(
    not HUGE_PAGES.exists() or "[never]" in HUGE_PAGES.read_text(encoding="utf-8"),
    reason="this kernel gives no huge pages",
)
def test_weights_lie_in_huge_pages() -> None:
    memory = Arena().allocate(100)
    assert read_mapping(memory.data_ptr())["THPeligible"].strip() == "1"


def test_a_kernel_without_huge_pages_gives_others(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(mmap.mmap):
        def madvise(self, *_: int) -> None:
            raise OSError(22, "Invalid argument")

    monkeypatch.setattr("mmap.mmap", Refusing)
    assert Arena().allocate(100).sum() == 0
