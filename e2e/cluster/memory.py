"""The memory that this machine has to give."""

from pathlib import Path


def available_memory(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Return the bytes that may be used without swapping."""
    line = next(line for line in meminfo.read_text().splitlines() if line.startswith("MemAvailable:"))
    return int(line.split()[1]) * 1024
