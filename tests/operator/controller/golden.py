"""Services as an earlier operator left them, and the pods of a revision that is made today.

`golden/left_by_VERSION.json` is written once, by the operator of that version, and never again:
`python -m tests.operator.controller.golden VERSION`. `golden/templates.json` shows what is rendered today:
`python -m tests.operator.controller.golden` writes it anew. What its diff shows, new revisions alone get.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from millrace_operator.kube.kinds import Obj
from millrace_operator.render.settings import RenderSettings
from testing.world import World

FOLDER = Path(__file__).with_name("golden")
TEMPLATES = FOLDER / "templates.json"
IMAGE = "registry.example.com/runtime:recorded"
SPECS: dict[str, dict[str, Any]] = {
    "minimal": {},
    "gpus": {
        "model": {"uri": "file:///models/large", "servedName": "large"},
        "engine": {"maxModelLength": 8192, "maxSequences": 64, "maxBatchedTokens": 2048},
        "parallelism": {"tensor": 4},
        "resources": {"limits": {"nvidia.com/gpu": 4, "memory": "80Gi"}, "requests": {"cpu": "500m"}},
        "rollout": {"progressDeadline": "2h"},
    },
    "claim": {
        "model": {"uri": "pvc://weights/llama/8b", "quantization": {"weights": "Int4"}},
        "resources": {"limits": {"cpu": "1.5", "memory": "2Gi"}},
        "scaling": {"minReplicas": 2, "maxReplicas": 4},
    },
    "hub": {
        "model": {
            "uri": "hf://acme/chat-8b@0123456789abcdef0123456789abcdef01234567",
            "credentials": {"secretName": "hub-token"},
        },
        "resources": {"limits": {"nvidia.com/gpu": 1, "memory": "64Gi"}, "requests": {"cpu": "4"}},
        "pod": {"env": [{"name": "HTTPS_PROXY", "value": "http://proxy.example:3128"}]},
    },
    "placement": {
        "pod": {
            "nodeSelector": {"gpu": "a"},
            "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
            "priorityClassName": "high",
            "runtimeClassName": "nvidia",
            "imagePullSecrets": [{"name": "registry"}],
            "topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
            ],
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-gpu", "request": "any"}],
            "labels": {"team": "shop"},
            "annotations": {"note": "kept"},
            "env": [{"name": "MODE", "value": "fast"}],
            "terminationGracePeriodSeconds": 3600,
        }
    },
}


class Shop(World):
    """A world whose runtime has an image that no default names."""

    settings = RenderSettings(runtime_image=IMAGE)


async def leave(name: str) -> dict[str, Any]:
    """Return a service and all its children, settled under the present operator."""
    shop = Shop(**SPECS[name])
    shop.model_revision = "0123456789abcdef0123456789abcdef01234567"
    await shop.settle()
    return {"service": shop.service, "children": children_of(shop)}


def children_of(world: World) -> list[Obj]:
    """Return what the operator has made for the service, without pods and Events."""
    return [obj for obj in world.cluster.objects.values() if obj["kind"] not in ("Pod", "InferenceService")]


async def render_templates() -> dict[str, Obj]:
    """Return the pod template of a new revision, by the name of its spec."""
    left = {name: await leave(name) for name in SPECS}
    return {
        name: child["spec"]["template"]
        for name, service in left.items()
        for child in service["children"]
        if child["kind"] == "Deployment"
    }


def read_left() -> dict[str, dict[str, Any]]:
    """Return the services that earlier versions left, by version and name."""
    return {
        f"{path.stem.removeprefix('left_by_')} {name}": service
        for path in sorted(FOLDER.glob("left_by_*.json"))
        for name, service in json.loads(path.read_text()).items()
    }


async def main(argv: list[str]) -> None:
    """Write the templates anew, a line for each value; or what this version leaves."""
    for version in argv:
        left = {name: await leave(name) for name in SPECS}
        (FOLDER / f"left_by_{version}.json").write_text(json.dumps(left) + "\n")
    if not argv:
        TEMPLATES.write_text(json.dumps(await render_templates(), indent=1) + "\n")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
