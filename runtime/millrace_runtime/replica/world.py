"""The workers of all pods that hold one model together. What the environment says of them is read here alone.

The names are torchrun's: what starts groups of pods sets them already. They clash with nothing of ours, as
torch is told rank, size and meeting by arguments. One pod holds all workers of a replica today. So a larger
world is refused: each of its pods would load the whole model and serve it alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from millrace_runtime.replica.errors import SettingError

ENV_RANK: Final = "RANK"
ENV_WORLD_SIZE: Final = "WORLD_SIZE"
ENV_ADDRESS: Final = "MASTER_ADDR"
ENV_PORT: Final = "MASTER_PORT"


@dataclass(frozen=True)
class World:
    """The place of a pod's workers among those of all pods."""

    size: int
    """Workers, over all pods."""
    rank: int = 0
    """Of the pod's first worker."""
    address: str = ""
    """Where the workers of several pods find each other; empty in a world of one pod."""
    port: int = 0


def read_world(environment: Mapping[str, str], num_workers: int) -> World:
    """Return the world of a pod with so many workers: these alone, as no executor spans several pods yet.

    Raises SettingError where the environment says that there are more, and for what is no number.
    """
    size = _read_number(environment, ENV_WORLD_SIZE, num_workers)
    if size <= num_workers:
        return World(num_workers)  # the others may mean something else: a Service "master" sets MASTER_PORT
    rank, port = _read_number(environment, ENV_RANK, 0), _read_number(environment, ENV_PORT, 0)
    raise _refuse(World(size, rank, environment.get(ENV_ADDRESS, ""), port), num_workers)


def _refuse(world: World, num_workers: int) -> SettingError:
    own = "1 worker" if num_workers == 1 else f"{num_workers} workers"
    meeting = f"{world.address or '?'}:{world.port or '?'}"
    return SettingError(
        f"{ENV_WORLD_SIZE} is {world.size} ({ENV_RANK} {world.rank}, meeting at {meeting}) and this pod has "
        f"{own}: groups over several nodes are not there yet; unset {ENV_WORLD_SIZE}, and give one node what "
        "the model needs"
    )


def _read_number(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name) or str(default)
    if not text.isdecimal():
        raise SettingError(f"{name} is {text!r}: write a whole number, or unset it")
    return int(text)
