"""The head of a model: the facts in its small files, and in the headers of its large ones. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from millrace_fetch.errors import CorruptError
from millrace_fetch.plan.selection import check_pointer
from millrace_fit.errors import HeaderError
from millrace_fit.facts import ModelFacts, find_facts, shorten
from millrace_fit.files.formats import explain_formats, find_formats
from millrace_fit.files.headers import LENGTH_BYTES, MAX_TENSORS, StoredTensor, parse_header, read_length
from millrace_fit.files.needed import CONFIG, MODELOPT
from millrace_fit.quantization.methods import add_modelopt, has_quantization


@dataclass(frozen=True)
class ModelHead:
    """The facts in a model's small files and in the headers of its large ones."""

    revision: str
    """The source's revision; empty for a local folder."""
    config: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]
    """By name, of all files; empty for a model without safetensors."""
    names: frozenset[str]
    """The names of all of the source's files, or of those that a look has found."""
    num_bytes: int
    """The size of the files with the tensors, or of those that a look has found."""
    is_whole: bool = True
    """Whether all files are known. If not, the tensors are those that config.json describes."""
    fault: str | None = None
    """Why no replica can use a file that it needs, in a sentence. Then the weights were not read."""


def parse_config(content: bytes, modelopt: bytes | None) -> dict[str, Any]:
    """Return the JSON object that config.json holds, with what hf_quant_config.json beside it adds.

    Raises CorruptError and UnfitFileError.
    """
    config = _parse_object(CONFIG, content)
    if modelopt is None or has_quantization(config):
        return config
    return add_modelopt(config, _parse_object(MODELOPT, modelopt))


def _parse_object(name: str, content: bytes) -> dict[str, Any]:
    check_pointer(name, content)
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"{name} can't be read as JSON") from error
    if not isinstance(value, dict):
        raise CorruptError(f"{name} is no JSON object")
    return value


def parse_tensors(name: str, content: bytes, file_bytes: int) -> dict[str, StoredTensor]:
    """Return the tensors of a file with `file_bytes` that starts with `content`.

    Raises CorruptError and UnfitFileError.
    """
    check_pointer(name, content)
    try:
        end = LENGTH_BYTES + read_length(content, file_bytes)
        return parse_header(content[LENGTH_BYTES:end], file_bytes)
    except HeaderError as error:
        raise CorruptError(f"{name} is no safetensors file that can be read: {error}") from error


def merge(files: Mapping[str, Mapping[str, StoredTensor]]) -> dict[str, StoredTensor]:
    """Return the tensors of all files. Raises CorruptError if two files hold the same tensor."""
    tensors: dict[str, StoredTensor] = {}
    for name, found in files.items():
        if twice := found.keys() & tensors.keys():
            raise CorruptError(f"{name} holds the tensor {min(twice)}, and so does another file beside it")
        tensors |= found
        if len(tensors) > MAX_TENSORS:
            raise CorruptError(f"the files hold more than {MAX_TENSORS} tensors: refused")
    return tensors


def describe_head(head: ModelHead) -> ModelFacts:
    """Return the facts. For a model without safetensors the fault names the other formats of its weights."""
    facts = find_facts(head.config, head.tensors)
    fault = head.fault or _explain_weights(head, facts)
    if fault is None:
        return facts
    if facts.architecture and facts.shape is None:  # first: after a conversion this fault remains
        fault = f"{facts.fault}. Besides, {fault}"
    return replace(facts, fault=shorten(fault))


def _explain_weights(head: ModelHead, facts: ModelFacts) -> str | None:
    """Return why none of the files has weights for a replica; None if some have, or if that is not known."""
    is_known = bool(head.tensors) or not head.is_whole
    if is_known or (facts.shape is None and not find_formats(head.names)):
        return None
    return explain_formats(head.names)


class Resolved(NamedTuple):
    """A revision of a model, the size of a fetch of it, and its facts: the output of `--resolve`."""

    revision: str | None
    """None for a local folder, which has no revisions."""
    num_files: int
    num_bytes: int | None
    """None if the source does not send the size of each file."""
    facts: ModelFacts | None
    """None if only a whole fetch would show them: an image in which a look found no config.json, or a server
    without range requests."""

    def render(self) -> str:
        """Return one line of JSON with fewer than 2,000 bytes in UTF-8."""
        found: dict[str, Any] = {} if self.revision is None else {"revision": self.revision}
        found["numFiles"] = self.num_files
        if self.num_bytes is not None:
            found["numBytes"] = self.num_bytes
        if self.facts is not None:
            found["facts"] = json.loads(self.facts.to_json())
        return json.dumps(found, separators=(",", ":"), ensure_ascii=False)
