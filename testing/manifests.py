"""Manifests that pages show or have shown: a user who applied one may apply it again."""

import re
from collections.abc import Iterator
from pathlib import Path

import yaml

from millrace_operator.kube.kinds import INFERENCE_SERVICE, Obj

ROOT = Path(__file__).resolve().parents[1]
OLDER = Path(__file__).with_name("manifests")
_BLOCK = re.compile(r"^( *)```ya?ml\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def read_corpus() -> dict[str, Obj]:
    """Return the manifests of the examples, of the pages and of earlier days, by file and place in it."""
    files = [*_list_files("examples", "*.yaml"), ROOT / "README.md", *_list_files("docs", "*.md")]
    files += sorted(OLDER.glob("*.yaml"))
    return {
        f"{path.relative_to(ROOT)} {number}": manifest
        for path in files
        for number, manifest in enumerate(_read_manifests(path), start=1)
    }


def _list_files(folder: str, pattern: str) -> list[Path]:
    return sorted((ROOT / folder).rglob(pattern))


def _read_manifests(path: Path) -> Iterator[Obj]:
    """Yield a file's InferenceServices; of a page, those of its blocks of YAML."""
    text = path.read_text()
    blocks = [block for _, block in _BLOCK.findall(text)] if path.suffix == ".md" else [text]
    for block in blocks:
        if f"kind: {INFERENCE_SERVICE.kind}" in block:
            yield from (
                found for found in yaml.safe_load_all(block) if found.get("kind") == INFERENCE_SERVICE.kind
            )
