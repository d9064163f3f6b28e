"""Layers that would do harm, each with the words of its refusal."""

import tarfile

from testing.model_sources.registry import make_tar


def claim(size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    """A header whose entry has another size than it says."""
    info = tarfile.TarInfo("models/config.json")
    info.type = kind
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[124:136] = tarfile.itn(size, 12, tarfile.GNU_FORMAT)  # type: ignore[attr-defined]
    header[148:156] = b"        "
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + bytes(1024)


BOMBS = {
    "larger": (claim(1 << 40), "is larger than the layer"),
    "negative": (claim(-1024), "is larger than the layer|can't be read as a tar"),
    "long header": (claim(1 << 33, tarfile.GNUTYPE_LONGNAME), "a header of more than 1 MiB"),
    "long pax": (claim(1 << 33, tarfile.XHDTYPE), "a header of more than 1 MiB"),
    "negative pax": (claim(-1024, tarfile.XHDTYPE), "a header of more than 1 MiB|can't be read as a tar"),
    "cut": (make_tar({"models/config.json": b"x" * 5000})[:2000], "can't be read as a tar|larger than"),
    "no tar": (b"words" * 500, "can't be read as a tar"),
    "bad gzip": (b"\x1f\x8b" + b"x" * 500, "can't be read as a tar"),
    "bad zstd": (b"\x28\xb5\x2f\xfd" + b"x" * 500, "can't be read as a tar"),
}
