"""A model's folder with random weights, and replicas of it: the real processes."""

import asyncio
import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import httpx
import numpy as np
import pytest
import safetensors.numpy
import uvloop
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from testing.text_model import TEMPLATE
from tests.runtime.forkserver import Forkserver

_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 258,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "torch_dtype": "float32",
    "bos_token_id": 256,
    "eos_token_id": 257,
}


def _write_tokenizer(folder: Path) -> None:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate(letters)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def _write_weights(folder: Path) -> None:
    random = np.random.default_rng(1)
    hidden, wide, head = _CONFIG["hidden_size"], _CONFIG["intermediate_size"], _CONFIG["head_dim"]
    shapes = {"model.embed_tokens.weight": (_CONFIG["vocab_size"], hidden), "model.norm.weight": (hidden,)}
    for layer in range(_CONFIG["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        shapes |= {
            f"{at}.input_layernorm.weight": (hidden,),
            f"{at}.post_attention_layernorm.weight": (hidden,),
            f"{at}.self_attn.q_proj.weight": (2 * head, hidden),
            f"{at}.self_attn.k_proj.weight": (head, hidden),
            f"{at}.self_attn.v_proj.weight": (head, hidden),
            f"{at}.self_attn.o_proj.weight": (hidden, 2 * head),
            f"{at}.mlp.gate_proj.weight": (wide, hidden),
            f"{at}.mlp.up_proj.weight": (wide, hidden),
            f"{at}.mlp.down_proj.weight": (hidden, wide),
        }
    weights = {name: random.normal(0, 0.2, shape).astype("float32") for name, shape in shapes.items()}
    safetensors.numpy.save_file(weights, folder / "model.safetensors")


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(_CONFIG))
    _write_tokenizer(folder)
    _write_weights(folder)
    return folder


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run asynchronous tests on the loop that a replica has."""
    return {"uvloop": uvloop.new_event_loop}


def children_of(pid: int) -> dict[str, int]:
    """Process ids of a process's children, by their module's name."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            words = Path(f"/proc/{child}/cmdline").read_text().split("\0")
            if len(words) < 3:
                continue  # between fork and exec
            found[words[2].rpartition(".")[2]] = int(child)
    return found


class Replica:
    """A `millrace serve` of its own, its log, and the address that its log names."""

    def __init__(self, argv: list[str]) -> None:
        self.lines: list[str] = []
        self.has_ended = False
        command = [Path(sys.executable).with_name("millrace"), *argv]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self._grew = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._grew:
                self.lines.append(line.rstrip())
                self._grew.notify_all()
        with self._grew:
            self.has_ended = True
            self._grew.notify_all()

    def wait_for(self, pattern: str, timeout: float = 60.0) -> re.Match[str]:
        def find() -> re.Match[str] | None:
            return next((match for line in self.lines if (match := re.search(pattern, line))), None)

        with self._grew:
            match = self._grew.wait_for(lambda: find() or self.has_ended, timeout) and find()
        assert match, f"no line like {pattern!r} in: {self.lines}"
        return match

    @property
    def address(self) -> str:
        return self.wait_for(r"ready after .* at (http\S+)/v1")[1]

    @property
    def live_address(self) -> str:
        return self.wait_for(r"liveness at (http\S+)")[1]

    def children(self) -> dict[str, int]:
        """Process ids of the engine and the HTTP process, by their module's name."""
        return children_of(self.process.pid)

    def wait(self, timeout: float = 30.0) -> int:
        status = self.process.wait(timeout)
        self._reader.join(5)
        return status

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(30)
        self._reader.join(5)
        assert self.process.stderr is not None
        self.process.stderr.close()


@pytest.fixture
def start(forkserver: Forkserver) -> Iterator[Callable[..., Replica]]:
    started: list[Replica] = []

    def start_one(*argv: str, is_forked: bool = True) -> Replica:
        ports = [] if "--port" in argv else ["--port", "0"]
        with forkserver.used() if is_forked else nullcontext():
            replica = Replica(["serve", "--host", "127.0.0.1", "--live-port", "0", *ports, *argv])
        started.append(replica)
        return replica

    yield start_one
    for replica in started:
        replica.close()


@pytest.fixture
def client() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=30.0, trust_env=False) as http_client:
        yield http_client
