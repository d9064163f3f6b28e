"""Which engines a run starts, which it leaves out, and why."""

from pathlib import Path

from benchmarks.runtime.choice import NOT_ASKED_FOR, Choice
from benchmarks.runtime.engines import EngineSpec
from benchmarks.runtime.errors import EngineError
from benchmarks.runtime.figures import OURS
from benchmarks.runtime.former import Former
from benchmarks.runtime.models.peer_files import convert_for
from benchmarks.runtime.ours import can_serve, our_server, our_specs, with_tokens
from benchmarks.runtime.peers import PEERS, Builder, Peer


class Lineup:
    """Finds the engines of each precision, and notes what it left out."""

    def __init__(self, choice: Choice, num_threads: int) -> None:
        self._choice, self._num_threads = choice, num_threads
        self.left_out = dict.fromkeys(choice.list_unwanted(), NOT_ASKED_FOR)
        """Why, by the name of what is left out."""
        self.versions: dict[str, str] = {}
        """Of the peers, by name."""

    def find_specs(self, model: Path, precision: str, former: Former | None) -> list[EngineSpec]:
        """Return the engines of a precision, ours first; none where ours is wanted and lacks it."""
        specs: list[EngineSpec] = []
        if self._choice.has_engine(OURS):
            if not can_serve(precision):
                self.left_out[f"{OURS} {precision}"] = "`millrace serve` has no --weights: rows skipped"
                return []
            for spec in our_specs(model, precision, self._num_threads):
                if spec.manner in self._choice.subject.manners:
                    specs += [spec] if former is None else [spec, former.replace(spec)]
        found = [self.find_peer(peer, precision) for peer in PEERS]
        return specs + [spec for spec in found if spec is not None]

    def find_caching_specs(self, model: Path) -> list[EngineSpec]:
        """Return the servers that are compared with their prefix caches, in bf16, ours first."""
        ours = our_server(model, "bf16", dialect=with_tokens())
        found = [self.find_peer(peer, "bf16", peer.build_caching) for peer in PEERS if peer.build_caching]
        return [ours, *(spec for spec in found if spec is not None)]

    def find_peer(self, peer: Peer, precision: str, build: Builder | None = None) -> EngineSpec | None:
        """Return how to start a peer, as `build` says or as usual.

        Return None, and note why, where it is not wanted or not there.
        """
        if precision not in peer.models or not self._choice.has_engine(peer.name):
            return None
        folder, stem = self._choice.peers, self._choice.subject.stem
        if folder is None:
            self.left_out[f"{peer.name} {precision}"] = "absent: $PEERS is not set"
            return None
        if (obstacle := self._find_obstacle(peer, precision, folder)) is not None:
            self.left_out[f"{peer.name} {precision}"] = obstacle
            return None
        if peer.name not in self.versions and (version := peer.read_version(folder)) is not None:
            self.versions[peer.name] = version
        model, build = folder / peer.name_model(stem, precision), build or peer.build
        spec = build(folder, model, precision, self._num_threads)
        if spec.lacks:
            self.left_out[f"{peer.name}, a part"] = f"it runs slower without {spec.lacks}"
        return spec

    def _find_obstacle(self, peer: Peer, precision: str, folder: Path) -> str | None:
        """Return what keeps a peer from running, or None; make its model where that is absent."""
        try:
            convert_for(peer, self._choice.subject, folder, precision)
        except EngineError as error:
            return f"failed: {error}"
        missing = peer.find_missing(folder, self._choice.subject.stem, precision)
        return None if missing is None else f"absent: {missing}"
