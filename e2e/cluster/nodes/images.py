"""Which image a name means, and what its Containerfile says that a process node can make true.

An image is known by the name that its Containerfile's first lines build it with (`podman build … -t
NAME:TAG`), and by no other tag or registry, as on a node that has pulled it. Of the Containerfile's last
stage a node takes ENTRYPOINT, CMD, ENV, USER, WORKDIR and each COPY from the build context (the image
folders' parent) to an absolute path. RUN builds what the host's own Python environment has already.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from e2e.cluster.nodes.errors import ImageError


@dataclass(frozen=True)
class Image:
    """What starting a container needs to know of its image."""

    name: str
    entrypoint: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    env: Mapping[str, str] | None = None
    copies: tuple[tuple[Path, str], ...] = ()
    """Host path and absolute path in the container."""
    user: str = ""
    workdir: str = "/"


def load_image(reference: str, image_dirs: Sequence[Path]) -> Image:
    """Return the image that a reference names. Raises ImageError, which lists those that exist."""
    known: list[str] = []
    for path in (path for folder in image_dirs for path in sorted(folder.glob("*/Containerfile"))):
        text = path.read_text()
        name = find_name(text)
        if name == reference:
            return parse_containerfile(reference, text, context=path.parents[2])
        known += [name] if name else []
    raise ImageError(
        "ErrImagePull",
        f"no image {reference!r}: this node has {', '.join(sorted(known)) or 'none'} "
        f"(the names that Containerfiles say in {', '.join(map(str, image_dirs))})",
    )


def find_name(text: str) -> str | None:
    """Return the name that a Containerfile's comment builds its image with, None without one."""
    found = re.search(r"^#.* -t (\S+)", text, re.MULTILINE)
    return found[1] if found else None


def parse_containerfile(reference: str, text: str, context: Path) -> Image:
    """Return a Containerfile's last stage. The sources of its COPY are relative to `context`."""
    image = Image(reference, env={})
    for keyword, rest in _instructions(text):
        image = _apply(image, keyword, rest, context)
    if not image.entrypoint:
        raise ImageError("InvalidImageName", f"the Containerfile of {reference} has no ENTRYPOINT")
    return image


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    joined = re.sub(
        r"\\\s*\n", " ", "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    )
    for line in joined.splitlines():
        keyword, _, rest = line.strip().partition(" ")
        if keyword:
            yield keyword.upper(), rest.strip()


def _apply(image: Image, keyword: str, rest: str, context: Path) -> Image:  # noqa: PLR0911  a table
    match keyword:
        case "FROM":
            return Image(image.name, env={})
        case "ENTRYPOINT":
            return replace(image, entrypoint=_words(rest, image.name))
        case "CMD":
            return replace(image, arguments=_words(rest, image.name))
        case "ENV":
            return replace(image, env=_set_env(image.env or {}, rest))
        case "USER":
            return replace(image, user=rest.partition(":")[0])
        case "WORKDIR":
            return replace(image, workdir=rest)
        case "COPY":
            return replace(image, copies=image.copies + _copies(rest, context))
    return image


def _words(rest: str, name: str) -> tuple[str, ...]:
    try:
        words = json.loads(rest)
    except json.JSONDecodeError as error:
        raise ImageError(
            "InvalidImageName", f"{name}: write ENTRYPOINT and CMD as a JSON list, not {rest}"
        ) from error
    return tuple(str(word) for word in words)


def _set_env(env: Mapping[str, str], rest: str) -> dict[str, str]:
    words = shlex.split(rest)
    if words and "=" not in words[0]:
        words = [f"{words[0]}={' '.join(words[1:])}"]
    result = dict(env)
    for word in words:
        key, _, value = word.partition("=")
        result[key] = re.sub(r"\$\{?(\w+)\}?", lambda found: result.get(found[1], found[0]), value)
    return result


def _copies(rest: str, context: Path) -> tuple[tuple[Path, str], ...]:
    words = shlex.split(rest)
    flags = [word for word in words if word.startswith("--")]
    *sources, target = [word for word in words if not word.startswith("--")]
    if not target.startswith("/") or any(flag.startswith("--from=") for flag in flags):
        return ()
    if len(sources) == 1 and not (target.endswith("/") and (context / sources[0]).is_file()):
        return (((context / sources[0]).resolve(), target),)
    return tuple(
        ((context / source).resolve(), f"{target.rstrip('/')}/{Path(source).name}") for source in sources
    )
