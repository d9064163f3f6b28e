"""What a Prometheus operator makes of a PodMonitor.

Its order matters here: it sets namespace, container, pod, job and endpoint before it applies the monitor's
own relabelings. Known from `generatePodMonitorConfig` of pkg/prometheus/promcfg.go of version 0.93.0. Left
out are settings that ours does not have, the labels of a Prometheus that enforces one, and sharding.
"""

from collections.abc import Sequence
from typing import Any

POD = "__meta_kubernetes_pod"
Targets = Sequence[dict[str, Any]]


def render_scrape_configs(monitor: dict[str, Any], targets: Targets) -> list[dict[str, Any]]:
    """One job for each endpoint. `targets` stand in for the discovery of pods, with its labels."""
    metadata, spec = monitor["metadata"], monitor["spec"]
    jobs = []
    for number, endpoint in enumerate(spec["podMetricsEndpoints"]):
        known = {"port", "interval", "relabelings", "metricRelabelings"}
        assert set(endpoint) <= known, "say here what the operator makes of it"
        jobs.append(
            {
                "job_name": f"podMonitor/{metadata['namespace']}/{metadata['name']}/{number}",
                "honor_labels": False,
                "static_configs": list(targets),
                "scrape_interval": endpoint["interval"],
                "relabel_configs": [
                    *_select(spec["selector"], endpoint["port"]),
                    *_label(f"{metadata['namespace']}/{metadata['name']}", endpoint["port"]),
                    *map(_translate, endpoint.get("relabelings", [])),
                ],
                "metric_relabel_configs": list(map(_translate, endpoint.get("metricRelabelings", []))),
            }
        )
    return jobs


def _select(selector: dict[str, Any], port: str) -> list[dict[str, Any]]:
    assert set(selector) == {"matchExpressions"}
    rules: list[dict[str, Any]] = [
        {"source_labels": ["job"], "target_label": "__tmp_prometheus_job_name"},
        {"action": "drop", "source_labels": [f"{POD}_phase"], "regex": "(Failed|Succeeded)"},
    ]
    for expression in selector["matchExpressions"]:
        assert expression["operator"] == "In"
        label = expression["key"].replace(".", "_").replace("/", "_")
        rules.append(
            {
                "action": "keep",
                "source_labels": [f"{POD}_label_{label}", f"{POD}_labelpresent_{label}"],
                "regex": f"({'|'.join(expression['values'])});true",
            }
        )
    return [*rules, {"action": "keep", "source_labels": [f"{POD}_container_port_name"], "regex": port}]


def _label(job: str, port: str) -> list[dict[str, Any]]:
    return [
        {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
        {"source_labels": [f"{POD}_container_name"], "target_label": "container"},
        {"source_labels": [f"{POD}_name"], "target_label": "pod"},
        {"target_label": "job", "replacement": job},
        {"target_label": "endpoint", "replacement": port},
    ]


def _translate(rule: dict[str, Any]) -> dict[str, Any]:
    names = {"sourceLabels": "source_labels", "targetLabel": "target_label"}
    return {names.get(key, key): value for key, value in rule.items()}
