"""What is drawn of the things around a service: models, claims, nodes, Jobs and pods in any state."""

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from hypothesis import strategies as st

from millrace_operator.kube.kinds import CHILDREN, CONTROLLER_REVISION, JOB, POD
from millrace_runtime import contract
from testing.world import KEY
from tests.operator.controller.instant import DELETIONS
from tests.operator.controller.lives import ENDS, FACTS, LIVES, STATES
from tests.operator.controller.schedule import AUTOMATIC, EXTERNAL, INDEX, STARTS, STEP, WAYS

HUB = {"uri": "hf://acme/chat@main"}
SHARED = {**HUB, "cache": {"type": "PersistentVolumeClaim", "claimName": "models"}}
MODELS: dict[str, dict[str, Any]] = {
    "in the image": {"uri": "file:///models/stories"},
    "fetched by each pod": HUB,
    "in a claim": {"uri": "pvc://models/chat"},
    "kept in a claim": SHARED,
    "kept on nodes": {**HUB, "cache": {"type": "NodeLocal"}},
}
RESOURCES: dict[str, dict[str, Any]] = {
    "unknown": {},
    "too small": {"limits": {"memory": "8Gi"}},
    "large": {"limits": {"memory": "64Gi"}},
    "GPU": {"limits": {"nvidia.com/gpu": 1}},
}
SCALINGS: dict[str, dict[str, Any]] = {
    "External": {"scaling": EXTERNAL, "replicas": 2},
    "one": {"scaling": EXTERNAL, "replicas": 1},
    "Automatic": {"scaling": AUTOMATIC},
    "DryRun": {"scaling": {"mode": "DryRun", "minReplicas": 1, "maxReplicas": 4}},
}
CLAIMS: dict[str, tuple[list[str], str, str]] = {
    "shared": (["ReadWriteMany"], "pvc-1", "Bound"),
    "unbound": (["ReadWriteMany"], "", "Pending"),
    "lost": (["ReadWriteMany"], "pvc-1", "Lost"),
    "of one node": (["ReadWriteOnce"], "pvc-1", "Bound"),
    "read only": (["ReadOnlyMany"], "pvc-1", "Bound"),
    "of the chart": (["ReadWriteMany"], f"{contract.VOLUME_KEPT}{KEY.namespace}", "Bound"),
}
"""Access modes, volume and phase."""
PRODUCTS = ("", "NVIDIA-L4", "NVIDIA-H100-80GB-HBM3", "GPU-of-its-own")
DEPARTURES: dict[str, dict[str, Any]] = {
    "stays": {},
    "cordoned": {"unschedulable": True},
    "removed": {"taints": [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]},
}
NODES = ("a", "b", "c")
REFUSABLE = [
    *(kind.kind for kind in CHILDREN),
    POD.kind,
    DELETIONS,
    *(CONTROLLER_REVISION.kind, JOB.kind) * 3,
]
"""Those that a model depends on come often."""


def _chain(parts: Iterable[list[Any]]) -> list[Any]:
    return [*itertools.chain(*parts)]


def _choose(names: Mapping[str, Any]) -> st.SearchStrategy[str]:
    return st.sampled_from(list(names))


EDITS = st.one_of(
    st.tuples(st.just("model"), _choose(MODELS)),
    st.tuples(st.just("resources"), _choose(RESOURCES)),
    st.tuples(st.just("revise"), st.sampled_from([4, 8, 16, 64])),
    st.tuples(st.just("selector"), st.sampled_from(PRODUCTS)),
    st.tuples(st.just("scaling"), _choose(SCALINGS)),
    st.tuples(st.just("way"), st.sampled_from(range(len(WAYS)))),
    st.tuples(st.just("pin"), st.sampled_from(["3 until 2026-01-01T01:00:00Z", "soon", ""])),
)
SURROUNDINGS = st.one_of(
    st.tuples(st.just("facts"), _choose(FACTS)),
    st.tuples(st.just("fill"), st.booleans()),
    st.tuples(st.just("claim"), st.tuples(st.booleans(), st.one_of(st.none(), _choose(CLAIMS)))),
    st.tuples(st.just("blind"), st.booleans()),
    st.tuples(
        st.just("node"),
        st.tuples(
            st.sampled_from(NODES), st.sampled_from(PRODUCTS), st.one_of(st.none(), _choose(DEPARTURES))
        ),
    ),
    st.tuples(st.just("empty"), st.tuples(INDEX, st.sampled_from(NODES), _choose(DEPARTURES))),
    st.tuples(st.just("state"), st.tuples(INDEX, _choose(STATES))),
    st.tuples(st.just("mark"), INDEX),
    st.tuples(st.just("unrouted"), INDEX),
    st.tuples(st.just("stranger"), INDEX),
    st.tuples(st.just("hold"), st.integers(0, 4)),
    st.tuples(st.just("autoscaler"), st.booleans()),
    st.tuples(st.just("usurp"), INDEX),
    st.tuples(st.just("refuse"), st.lists(st.sampled_from(REFUSABLE), max_size=3)),
)
LIKELY = ("told", "told of a large one", "told beside what fails", "running")
LIFE = st.tuples(st.just("life"), st.tuples(INDEX, st.sampled_from([*LIVES, *LIKELY * 3])))
OF_JOBS = st.one_of(
    LIFE,
    st.tuples(st.just("beside"), st.tuples(INDEX, _choose(LIVES))),
    st.tuples(st.just("end"), st.tuples(INDEX, st.sampled_from(ENDS))),
    st.tuples(st.just("forget"), INDEX),
    st.tuples(st.just("leave"), INDEX),
    st.tuples(st.just("age"), INDEX),
    st.tuples(st.just("far"), st.tuples(INDEX, st.integers(0, 4))),
)
PLAN = st.tuples(st.just("plan"), st.just(1))
WAIT = st.tuples(st.just("wait"), st.sampled_from([0.3, 61.0, 400.0, 2000.0, -3600.0]))
"""A clock may be set back."""
REFUSAL = st.tuples(st.just("refuse"), st.lists(st.sampled_from(REFUSABLE), min_size=1, max_size=3))
CIRCUMSTANCES = st.tuples(
    st.lists(st.one_of(STEP, EDITS, SURROUNDINGS), max_size=6),
    st.lists(EDITS, min_size=1, max_size=3),
    st.lists(SURROUNDINGS, min_size=1, max_size=3),
    st.one_of(st.just([]), st.lists(REFUSAL, min_size=1, max_size=1)),
    st.lists(st.tuples(PLAN, LIFE, st.one_of(WAIT, OF_JOBS)).map(list), min_size=1, max_size=4).map(_chain),
    st.lists(st.one_of(SURROUNDINGS, PLAN), min_size=1, max_size=5),
).map(_chain)
"""A history, an edit, what is around it, and what its Jobs come to while no controller moves."""
STARTING = st.tuples(
    _choose(STARTS), st.sampled_from([None, *MODELS]), _choose(RESOURCES), _choose(FACTS), st.booleans()
)
"""Without a model it has the one of its start. The last one is whether it serves before anything happens."""
