"""What Kubernetes needs for an HPA on requests in flight: the objects, and waits until they work."""

import json
from typing import Any

from e2e.cluster.api_reader import has_condition
from e2e.cluster.errors import PartFailedError
from e2e.cluster.local_cluster import LocalCluster
from e2e.external_metrics import GROUP, LABEL, METRIC, VERSION, Subject
from e2e.service import Service
from millrace_runtime.contract import GROUP as MILLRACE
from millrace_runtime.contract import KIND
from millrace_runtime.contract import VERSION as MILLRACE_VERSION
from testing.polling import wait_until

Object = dict[str, Any]

ADAPTER = {"namespace": "kube-system", "name": "external-metrics"}
API_SERVICE = f"{VERSION}.{GROUP}"
SCALE_UP = {
    "stabilizationWindowSeconds": 0,
    "selectPolicy": "Max",
    "policies": [
        {"type": "Percent", "value": 100, "periodSeconds": 15},
        {"type": "Pods", "value": 4, "periodSeconds": 15},
    ],
}
"""Kubernetes' defaults: in 15 s the count doubles or rises by four, whichever is more."""
SCALE_DOWN = {"policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}]}
"""Kubernetes' default without its window of 300 s, in whose place each trial has its own."""


def render_adapter_service() -> Object:
    """Return the Service that leads the API server to the adapter on the host."""
    spec = {"type": "ExternalName", "externalName": "127.0.0.1"}
    return {"apiVersion": "v1", "kind": "Service", "metadata": dict(ADAPTER), "spec": spec}


def render_api_service(port: int) -> Object:
    """Return what makes the API server ask the adapter for external metrics.

    The cluster's certificate does not name this Service. Both ends are on this machine, so it is not checked.
    Nor does the adapter ask who the API server is: anybody here may read the same from Prometheus.
    """
    spec = {
        "group": GROUP,
        "version": VERSION,
        "service": {**ADAPTER, "port": port},
        "insecureSkipTLSVerify": True,
        "groupPriorityMinimum": 100,
        "versionPriority": 100,
    }
    metadata = {"name": API_SERVICE}
    return {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": metadata,
        "spec": spec,
    }


def render_hpa(subject: Subject, target: int, max_replicas: int, window_seconds: float) -> Object:
    """Return an HPA that wants `target` requests in flight at each replica of a service."""
    metric = {"name": METRIC, "selector": {"matchLabels": {LABEL: subject.service}}}
    wanted = {"type": "AverageValue", "averageValue": str(target)}
    down = {**SCALE_DOWN, "stabilizationWindowSeconds": round(window_seconds)}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": subject.service, "namespace": subject.namespace},
        "spec": {
            "scaleTargetRef": {
                "apiVersion": f"{MILLRACE}/{MILLRACE_VERSION}",
                "kind": KIND,
                "name": subject.service,
            },
            "minReplicas": 1,
            "maxReplicas": max_replicas,
            "metrics": [{"type": "External", "external": {"metric": metric, "target": wanted}}],
            "behavior": {"scaleUp": SCALE_UP, "scaleDown": down},
        },
    }


def apply_adapter(cluster: LocalCluster, port: int) -> None:
    """Register the adapter, and wait until the API server has reached it. Raises AssertionError."""
    objects = {
        "apiVersion": "v1",
        "kind": "List",
        "items": [render_adapter_service(), render_api_service(port)],
    }
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(objects))
    path = f"/apis/apiregistration.k8s.io/v1/apiservices/{API_SERVICE}"
    wait_until(
        "external metrics are served",
        lambda: has_condition(cluster.api.get(path), "Available"),
        outlives=(PartFailedError,),
    )


def delete_adapter(cluster: LocalCluster) -> None:
    """Take the adapter from the API server, which would ask in vain for its API once it has ended."""
    cluster.kubectl("delete", "apiservice", API_SERVICE)
    cluster.kubectl("delete", "service", ADAPTER["name"], "-n", ADAPTER["namespace"])


def apply_hpa(service: Service, hpa: Object) -> None:
    """Apply an HPA, and wait until it decides by its metric. Raises AssertionError."""
    service.kubectl("apply", "-f", "-", stdin=json.dumps(hpa))
    name = hpa["metadata"]["name"]
    path = f"/apis/autoscaling/v2/namespaces/{service.namespace}/horizontalpodautoscalers/{name}"
    service.wait_for(
        "scaled by its HPA", lambda: has_condition(service.cluster.api.get(path), "ScalingActive"), 90
    )
