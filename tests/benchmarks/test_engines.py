"""Servers' dialects, drivers' pipes, and peers that are not there."""

import os
import sys
from pathlib import Path

import pytest

from benchmarks.runtime.client import LlamaCpp, OpenAI, PlainOpenAI
from benchmarks.runtime.engines import EngineSpec
from benchmarks.runtime.errors import EngineError
from benchmarks.runtime.peers import PEERS, Peer
from benchmarks.runtime.starts import compare_starts
from benchmarks.runtime.workload import Case, Completion, Figure

CASE = Case("one", Figure.OUTPUT, 1, 2, 3)
DRIVER = """
import json, sys
print(json.dumps({"ready": "1.0"}), flush=True)
for line in sys.stdin:
    question = json.loads(line)
    if question["prompts"] == [[0]]: sys.exit("out of memory")
    print(json.dumps({"completions": [[0, 1, 2, question["num_tokens"]]]}), flush=True)
"""


def test_a_driver_answers_line_by_line_and_its_end_is_told(tmp_path: Path) -> None:
    spec = EngineSpec("fake", "bf16", (sys.executable, "-c", DRIVER))
    with spec.start(tmp_path) as engine:
        assert engine.version == "1.0"
        assert engine.complete(CASE, [[5, 6]]) == [Completion(0, 1, 2, 3)]
        with pytest.raises(EngineError, match="ended by itself; its last words: out of memory"):
            engine.complete(CASE, [[0]])


def test_a_command_that_is_not_there_is_told(tmp_path: Path) -> None:
    spec = EngineSpec("fake", "bf16", ("/nonexistent/engine",))
    with pytest.raises(EngineError, match="/nonexistent/engine can't be started"), spec.start(tmp_path):
        pass


def test_openais_stream_counts_by_its_usage() -> None:
    dialect = OpenAI("m")
    assert dialect.body([1], 2)["ignore_eos"] is True
    assert "ignore_eos" not in PlainOpenAI("m").body([1], 2)
    text, usage = {"choices": [{"text": ""}]}, {"choices": [], "usage": {"completion_tokens": 7}}
    assert [dialect.count_tokens(event) for event in (text, usage)] == [1, 0]
    assert [dialect.read_total(event) for event in (text, usage)] == [None, 7]


def test_llama_cpps_stream_counts_by_its_tokens() -> None:
    dialect = LlamaCpp()
    assert dialect.read_tokens({"tokens": [5, 6]}) == [5, 6]
    assert OpenAI("m").read_tokens({"choices": [{"text": "ab", "token_ids": [5, 6]}]}) == [5, 6]
    assert OpenAI("m").read_tokens({"choices": [{"text": ""}]}) == []
    token, last = {"tokens": [5], "stop": False}, {"tokens": [], "stop": True, "tokens_predicted": 7}
    assert [dialect.count_tokens(event) for event in (token, last)] == [1, 0]
    assert [dialect.read_total(event) for event in (token, last)] == [None, 7]


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_a_peer_names_what_is_missing(peer: Peer, tmp_path: Path) -> None:
    precision = next(iter(peer.models))
    model = peer.name_model("small", precision)
    assert peer.find_missing(tmp_path, "small", precision) == f"$PEERS/{peer.program} is not there"
    for path in (peer.program, model):
        (tmp_path / path).mkdir(parents=True)
    assert peer.find_missing(tmp_path, "small", precision) is None
    assert (
        peer.find_missing(tmp_path, "qwen3", precision)
        == f"$PEERS/{model.replace('small', 'qwen3')} is not there"
    )
    command = peer.build(tmp_path, tmp_path / model, precision, 2).command
    assert str(tmp_path / model) in command


def test_only_chats_are_asked_of_peers_with_their_prefix_caches(tmp_path: Path) -> None:
    words = {}
    for peer in PEERS:
        for build in filter(None, (peer.build, peer.build_caching)):
            spec = build(tmp_path, tmp_path / "model", "bf16", 1)
            body = None if spec.dialect is None else spec.dialect.body([1], 2)
            words[peer.name, build is peer.build_caching] = f"{spec.command} {body}"
    assert "'--no-enable-prefix-caching'" in words["vllm", False]
    assert "'--enable-prefix-caching'" in words["vllm", True]
    assert "'return_token_ids': True" in words["vllm", True]
    assert "'--cache-ram', '0'" in words["llama.cpp", False]
    assert "'cache_prompt': False" in words["llama.cpp", False]
    assert "--cache-ram" not in words["llama.cpp", True]
    assert "'cache_prompt': True" in words["llama.cpp", True]
    assert len(words) == len(PEERS) + 2


def test_vllm_is_bound_to_our_cpus_and_names_the_libraries_it_lacks(tmp_path: Path) -> None:
    (vllm,) = (peer for peer in PEERS if peer.name == "vllm")
    spec = vllm.build(tmp_path, tmp_path / "model", "bf16", 1)
    assert spec.environment["VLLM_CPU_OMP_THREADS_BIND"] == str(min(os.sched_getaffinity(0)))
    assert spec.lacks == "libtcmalloc_minimal.so.4, libiomp5.so"
    library = tmp_path / "build/lib/libtcmalloc_minimal.so.4"
    library.parent.mkdir(parents=True)
    library.touch()
    spec = vllm.build(tmp_path, tmp_path / "model", "bf16", 1)
    assert (spec.lacks, spec.environment["LD_PRELOAD"]) == ("libiomp5.so", str(library))


def test_a_start_is_compared_with_the_fastest_peer() -> None:
    seconds = {"millrace": [4.0, 5.0], "slow": [40.0, 40.0], "fast": [10.0, 10.0]}
    comparison = compare_starts(seconds)
    assert comparison is not None
    assert (comparison.ratio.median, comparison.over) == (0.45, "fast")
    assert compare_starts({"millrace": [4.0]}) is None
