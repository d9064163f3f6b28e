"""A service, a replica and a trace in files, small enough for a simulation in each test."""

import json
import random
from pathlib import Path
from typing import Any

import yaml

from tests.kubectl.conftest import Answer, Terminal

REPLICA = {
    "overhead_seconds": 0.004,
    "weights_seconds": 0.016,
    "token_seconds": 0.00025,
    "context_seconds": 2e-8,
    "kv_tokens": 20_000,
    "max_sequences": 32,
}
"""One carries about three of the trace's requests a second."""


def make_manifest(**scaling: Any) -> dict[str, Any]:
    objectives = [
        {"metric": "TimeToFirstToken", "percentile": 95, "target": "1s"},
        {"metric": "TimePerOutputToken", "percentile": 95, "target": "50ms"},
    ]
    return {
        "apiVersion": "millrace.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "chat", "namespace": "shop"},
        "spec": {
            "model": {"uri": "file:///models/stories"},
            "resources": {"limits": {"cpu": 8, "nvidia.com/gpu": "2"}},
            "scaling": {"minReplicas": 1, "maxReplicas": 6, "objectives": objectives, **scaling},
        },
    }


def write_trace(path: Path, rates: tuple[float, ...] = (1.0, 4.0, 2.0), seconds: float = 120.0) -> Path:
    """Poisson requests of each rate for so many seconds."""
    rng, lines = random.Random(7), ["seconds,prompt_tokens,generation_tokens"]
    for number, rate in enumerate(rates):
        at = number * seconds
        while (at := at + rng.expovariate(rate)) < (number + 1) * seconds:
            lines.append(f"{at:.3f},{rng.randint(100, 900)},{rng.randint(50, 250)}")
    path.write_text("\n".join(lines) + "\n")
    return path


class Desk:
    """A user's folder with the three files, and the command."""

    def __init__(self, terminal: Terminal, folder: Path) -> None:
        self.terminal, self.folder = terminal, folder
        self.trace = write_trace(folder / "trace.csv")
        self.write("service.yaml", make_manifest())
        self.write("replica.json", REPLICA)

    def write(self, name: str, content: Any) -> Path:
        path = self.folder / name
        path.write_text(json.dumps(content) if name.endswith(".json") else yaml.safe_dump(content))
        return path

    def shorten(self) -> None:
        """Have seconds of the trace in the place of minutes, for what no load changes."""
        write_trace(self.trace, seconds=10.0)

    def simulate(self, *others: str, without: tuple[str, ...] = ()) -> Answer:
        usual = {
            "-f": self.folder / "service.yaml",
            "--replica": self.folder / "replica.json",
            "--trace": self.trace,
            "--cold-start": "30s",
        }
        words = [str(word) for flag, value in usual.items() if flag not in without for word in (flag, value)]
        return self.terminal.run("simulate", *words, *others)
