"""Prometheus for the local cluster: its configuration and command line. Starts nothing itself."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from e2e.cluster.controlplane import Command, part_command
from e2e.cluster.loopback import answers
from e2e.cluster.settings import Layout, Ports

SCRAPE_SECONDS = 2
"""Between two scrapes, where nobody asks for another interval: short, so that tests don't wait."""


def render_prometheus(kubeconfig: Path, scrape_seconds: int) -> str:
    """Render a configuration that scrapes every pod of ours: `http` or `metrics`, whatever it has."""
    config = {
        "global": {"scrape_interval": f"{scrape_seconds}s", "scrape_timeout": f"{scrape_seconds}s"},
        "scrape_configs": [
            {
                "job_name": "millrace",
                "kubernetes_sd_configs": [{"role": "pod", "kubeconfig_file": str(kubeconfig)}],
                "relabel_configs": relabelling(),
                "metric_relabel_configs": metric_relabelling(),
            }
        ],
    }
    return json.dumps(config, indent=2)


def relabelling() -> list[dict[str, Any]]:
    """Which of the cluster's container ports are scraped, and what their series are labelled with."""
    pod = "__meta_kubernetes_pod"
    return [
        {"action": "keep", "source_labels": [f"{pod}_labelpresent_millrace_dev_component"], "regex": "true"},
        {"action": "keep", "source_labels": [f"{pod}_container_port_name"], "regex": "http|metrics"},
        {
            "action": "drop",
            "source_labels": [f"{pod}_label_millrace_dev_component", f"{pod}_container_port_name"],
            "regex": "gateway;http",
        },
        {"action": "drop", "source_labels": [f"{pod}_phase"], "regex": "Pending|Succeeded|Failed"},
        {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
        {"source_labels": [f"{pod}_name"], "target_label": "pod"},
        {"source_labels": [f"{pod}_label_millrace_dev_service"], "target_label": "service"},
        {"source_labels": [f"{pod}_label_millrace_dev_component"], "target_label": "component"},
    ]


def metric_relabelling() -> list[dict[str, Any]]:
    """Give back their names to the labels by which gateway and operator name a service.

    Prometheus renamed them, since the pod's own labels have these names. What a replica says is not believed.
    """
    spoken = "(?:gateway|operator);(.+)"
    return [
        {"source_labels": ["component", "exported_namespace"], "regex": spoken, "target_label": "namespace"},
        {"source_labels": ["component", "exported_service"], "regex": spoken, "target_label": "service"},
        {"action": "labeldrop", "regex": "exported_namespace|exported_service"},
    ]


def prometheus_command(programs: Mapping[str, Path], layout: Layout, ports: Ports) -> Command:
    """Prometheus on loopback, keeping two days."""
    return part_command(
        programs,
        "prometheus",
        f"--config.file={layout.prometheus_config}",
        f"--storage.tsdb.path={layout.data / 'prometheus'}",
        "--storage.tsdb.retention.time=2d",
        f"--web.listen-address=127.0.0.1:{ports.prometheus}",
        "--log.level=warn",
    )


def is_prometheus_ready(ports: Ports) -> bool:
    """Whether Prometheus has read its data and answers queries."""
    return answers(f"http://127.0.0.1:{ports.prometheus}/-/ready")
