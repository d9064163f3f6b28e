"""Versions of the runtime: as a service names them, and as the operator is told of their images. Pure."""

import re

VERSION_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._+-]*$"
VERSION_MAX_LENGTH = 64
_IMAGE_PATTERN = r"[^\s=]+"


class VersionError(ValueError):
    """A version of the runtime has no image; the text says what to write."""


def parse_runtime_version(text: str) -> tuple[str, str]:
    """Return a version and its image from VERSION=IMAGE. Raises VersionError."""
    version, _, image = text.partition("=")
    is_version = re.fullmatch(VERSION_PATTERN, version) and len(version) <= VERSION_MAX_LENGTH
    if not is_version or not re.fullmatch(_IMAGE_PATTERN, image):
        raise VersionError(
            f"{text!r} names no image of a version; write VERSION=IMAGE such as "
            "0.2.0=registry.example.com/runtime:0.2.0"
        )
    return version, image
