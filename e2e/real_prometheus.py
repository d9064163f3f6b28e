"""A real Prometheus in a process of its own, behind TLS and a password, that scrapes what a test exports."""

import asyncio
import json
import ssl
import subprocess
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from e2e.cluster.certificates import make_certificates
from e2e.cluster.prometheus import relabelling
from e2e.cluster.settings import free_ports
from testing.polling import wait_until

USER, PASSWORD = "operator", "open sesame"
PASSWORD_HASH = "$2b$04$MillraceMillraceMillrOpfcENsaswyHkMEAOOnczinJC7RPRFLy"


@dataclass(frozen=True)
class Pod:
    """A pod as Kubernetes' service discovery would show it."""

    namespace: str
    name: str
    service: str = ""
    """Its label millrace.dev/service."""
    component: str = "replica"
    container: str = "replica"

    @property
    def path(self) -> str:
        """Where its page is."""
        return f"/{self.namespace}/{self.name}"

    def render(self, address: str) -> dict[str, Any]:
        """The target, as a file of targets has it."""
        meta, pod = "__meta_kubernetes_", "__meta_kubernetes_pod_"
        port = "metrics" if self.component == "gateway" else "http"
        labels = {
            "__metrics_path__": self.path,
            f"{meta}namespace": self.namespace,
            f"{meta}service_name": f"{self.service}-replicas"
            if self.service
            else self.name.rsplit("-", 2)[0],
            f"{meta}endpoint_port_name": port,
            f"{pod}name": self.name,
            f"{pod}phase": "Running",
            f"{pod}container_name": self.container,
            f"{pod}container_port_name": port,
            f"{pod}label_millrace_dev_service": self.service,
            f"{pod}label_millrace_dev_component": self.component,
            f"{pod}labelpresent_millrace_dev_component": "true" if self.component else "",
        }
        return {"targets": [address], "labels": labels}


def replacing(source: str, target: str) -> dict[str, Any]:
    return {"source_labels": [f"__meta_kubernetes_{source}"], "target_label": target}


def fixing(target: str, value: str) -> dict[str, Any]:
    return {"target_label": target, "replacement": value}


def as_pod_monitor() -> list[dict[str, Any]]:
    """The labels that prometheus-operator gives to a PodMonitor's targets."""
    return [
        replacing("namespace", "namespace"),
        replacing("pod_container_name", "container"),
        replacing("pod_name", "pod"),
        fixing("job", "millrace/replicas"),
        fixing("endpoint", "http"),
    ]


def as_service_monitor() -> list[dict[str, Any]]:
    """The labels that prometheus-operator gives to a ServiceMonitor's targets."""
    return [*as_pod_monitor(), replacing("service_name", "service"), replacing("service_name", "job")]


@dataclass(frozen=True)
class Job:
    """A scrape job over pods that a test may change while it runs."""

    name: str
    interval_seconds: int
    relabelling: Sequence[dict[str, Any]]

    def render(self, folder: Path) -> dict[str, Any]:
        """The job, as Prometheus' configuration has it."""
        return {
            "job_name": self.name,
            "scrape_interval": f"{self.interval_seconds}s",
            "scrape_timeout": f"{self.interval_seconds}s",
            "file_sd_configs": [{"files": [str(self.file(folder))], "refresh_interval": "1s"}],
            "relabel_configs": list(self.relabelling),
        }

    def file(self, folder: Path) -> Path:
        """Where its targets stand."""
        return folder / f"{self.name}.json"


def as_ours() -> list[dict[str, Any]]:
    """The labels that the local cluster's scrape gives."""
    return relabelling()


class RealPrometheus:
    """One process at a time, with one folder of data."""

    def __init__(self, program: Path, certificates: Path, folder: Path, jobs: Sequence[Job]) -> None:
        self._program, self._folder, self._jobs = program, folder, jobs
        self._port = free_ports().prometheus
        self._process: subprocess.Popen[bytes] | None = None
        self.keys = folder / "keys"
        make_certificates(certificates, self.keys)
        (folder / "username").write_text(f"{USER}\n")
        (folder / "password").write_text(f"{PASSWORD}\n")
        web = {
            "tls_server_config": {
                "cert_file": str(self.keys / "server.crt"),
                "key_file": str(self.keys / "server.key"),
                "client_ca_file": str(self.keys / "ca.crt"),
                "client_auth_type": "RequireAndVerifyClientCert",
            },
            "basic_auth_users": {USER: PASSWORD_HASH},
        }
        (folder / "web.yml").write_text(json.dumps(web))
        config = {"scrape_configs": [job.render(folder) for job in jobs]}
        (folder / "prometheus.yml").write_text(json.dumps(config))

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"https://127.0.0.1:{self._port}"

    def file(self, name: str) -> Path:
        """A file of its folder, such as `username`."""
        return self._folder / name

    def set_targets(self, job: str, pods: Sequence[Pod], address: str) -> None:
        """Have a job scrape these pods from now on."""
        file = next(j.file(self._folder) for j in self._jobs if j.name == job)
        file.with_suffix(".new").write_text(json.dumps([pod.render(address) for pod in pods]))
        file.with_suffix(".new").rename(file)

    def start(self) -> None:
        """Start it and wait until it answers queries."""
        with self._folder.joinpath("log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    self._program,
                    f"--config.file={self._folder / 'prometheus.yml'}",
                    f"--web.config.file={self._folder / 'web.yml'}",
                    f"--storage.tsdb.path={self._folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{self._port}",
                    "--log.level=warn",
                ],
                stdout=log,
                stderr=log,
            )
        wait_until("Prometheus answers", self._is_ready, outlives=(aiohttp.ClientError,))

    def stop(self) -> None:
        """End it as Kubernetes does."""
        if self._process:
            self._process.terminate()
            self._process.wait(20)
            self._process = None

    def _is_ready(self) -> bool:
        return asyncio.run(self._ask_whether_ready())

    async def _ask_whether_ready(self) -> bool:
        context = ssl.create_default_context(cafile=self.keys / "ca.crt")
        context.load_cert_chain(self.keys / "admin.crt", self.keys / "admin.key")
        pair = b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        async with (
            aiohttp.ClientSession(headers={"Authorization": f"Basic {pair}"}) as session,
            session.get(f"{self.url}/-/ready", ssl=context) as response,
        ):
            return response.status == 200


@contextmanager
def running(prometheus: RealPrometheus) -> Iterator[RealPrometheus]:
    """Run it while entered."""
    prometheus.start()
    try:
        yield prometheus
    finally:
        prometheus.stop()
