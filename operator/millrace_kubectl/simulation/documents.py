"""Reads YAML and JSON files that people write."""

import importlib
import json
from pathlib import Path
from typing import Any

from millrace_kubectl.errors import UsageError

Obj = dict[str, Any]
NO_YAML = "{path} is YAML, and PyYAML is not installed: pip install 'millrace[simulate]', or write it as JSON"


def read_text(path: Path) -> str:
    """Return a file's text. Raises UsageError."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}; write the path of a file") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is no text; write the path of a text file") from error


def read_documents(path: Path) -> list[Obj]:
    """Return a file's objects, one or more. Raises UsageError."""
    text = read_text(path)
    found = _parse_json(path, text) if path.suffix == ".json" else _parse_yaml(path, text)
    documents = [document for document in found if document is not None]
    if not documents or not all(isinstance(document, dict) for document in documents):
        raise UsageError(f"{path} is no object; write fields with values, such as kind: InferenceService")
    return documents


def _parse_json(path: Path, text: str) -> list[Any]:
    try:
        return [json.loads(text)]
    except ValueError as error:
        raise UsageError(f"{path} is no JSON: {error}") from error


def _parse_yaml(path: Path, text: str) -> list[Any]:
    try:
        yaml = importlib.import_module("yaml")
    except ImportError as error:
        raise UsageError(NO_YAML.format(path=path)) from error
    try:
        return list(yaml.safe_load_all(text))
    except yaml.YAMLError as error:
        raise UsageError(f"{path} is no YAML: {' '.join(str(error).split())}") from error
