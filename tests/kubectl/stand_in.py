"""A kubectl for tests, run as a program: it has one object in a file, and refuses what kubectl refuses.

Its words are those of kubectl 1.32 and 1.34 against a real API server. Each call's arguments are noted.
"""

import json
import os
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

RESOURCE = "inferenceservices.v1alpha1.millrace.dev"
LEASES = [
    {
        "metadata": {"namespace": namespace, "creationTimestamp": made},
        "spec": {"holderIdentity": f"{pod}_7"},
    }
    for namespace, made, pod in (
        ("shop", "2026-01-03T00:00:00Z", "fake-1"),
        ("other", "2026-01-01T00:00:00Z", "other-1"),
        ("millrace", "2026-01-02T00:00:00Z", "operator-1"),
    )
]
"""Of a tenant, of another release, and of the operator that the service has."""
FOLDER = Path(os.environ["STAND_IN"])
if (RENEWED := FOLDER / "renewed").exists():
    for lease in LEASES:
        lease["spec"]["renewTime"] = RENEWED.read_text()
LISTED = {"leases.v1.coordination.k8s.io": LEASES, "controllerrevisions.v1.apps": []}
FLAGS = {
    "--show-managed-fields",
    "--namespace",
    "--context",
    "--kubeconfig",
    "--request-timeout",
    "--selector",
    "--field-selector",
    "--all-namespaces",
    "--ignore-not-found",
}


def fail(text: str) -> None:
    sys.stderr.write(f"Warning: a warning comes first\n{text}\n")
    sys.exit(1)


def parse(argv: list[str]) -> dict[str, str]:
    """Flags with their values; the words that are no flags are numbered."""
    found: dict[str, str] = {}
    rest = iter(argv)
    for word in rest:
        name, _, value = word.partition("=")
        if word in ("-o", "-p", "-f", "--type"):
            found[word] = next(rest)
        elif name in FLAGS:
            found[name] = value
        elif word.startswith("-"):
            fail(f"error: unknown flag: {word}")
        else:
            found[str(sum(key.isdigit() for key in found))] = word
    return found


def merge(old: Any, patch: Any) -> Any:
    """JSON merge patch, RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged


def patch(stored: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    wanted, version = change["metadata"].get("resourceVersion"), stored["metadata"]["resourceVersion"]
    if wanted not in (None, version):
        fail(
            f'Error from server (Conflict): Operation cannot be fulfilled on {RESOURCE} "chat": the object '
            "has been modified; please apply your changes to the latest version and try again"
        )
    new: dict[str, Any] = merge(stored, change)
    new["metadata"]["resourceVersion"] = str(int(version) + 1)
    return new


class Decisions(BaseHTTPRequestHandler):
    """The answer of a leading operator: the file decision.json, or that it does not know the service."""

    pod = ""

    def do_GET(self) -> None:
        found = {"operator-1": (FOLDER / "decision.json").read_bytes(), "fake-1": b'{"evidence": {}}'}
        body = found.get(self.pod, b'{"error": "no such service"}')
        self.send_response(200 if self.pod in found else 404)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def forward(pod: str) -> None:
    """Forward a port to an operator, until killed."""
    Decisions.pod = pod
    if not (FOLDER / "decision.json").exists():
        fail('error: pods "operator-1" is forbidden: User "ann" cannot create resource "pods/portforward"')
    with HTTPServer(("127.0.0.1", 0), Decisions) as server:
        sys.stdout.write(f"Forwarding from 127.0.0.1:{server.server_port} -> 8090\n")
        sys.stdout.flush()
        server.serve_forever()


def show_records() -> None:
    """The ControllerRevisions, one with the annotation in a file of its own, if they may be read."""
    file = FOLDER / "record.json"
    known = json.loads(file.read_text()) if file.exists() else ""
    if known is None:
        fail(
            'Error from server (Forbidden): controllerrevisions.apps is forbidden: User "ann" cannot list '
            'resource "controllerrevisions" in API group "apps" in the namespace "shop"'
        )
    items = [{"metadata": {"annotations": {"millrace.dev/autoscaler": known}}}, {"metadata": {}}]
    sys.stdout.write(json.dumps({"metadata": {}, "items": items if known else []}))


def keep_secrets(words: dict[str, str]) -> None:
    """The Secrets of a file, which begin with none. kubectl prints what it has done."""
    file = FOLDER / "secrets.json"
    known: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    name, answer = words.get("2", ""), None
    if words["0"] == "create":
        answer = json.load(sys.stdin)
        name = answer["metadata"]["name"]
        if name in known:
            fail(f'Error from server (AlreadyExists): secrets "{name}" already exists')
        answer["metadata"]["resourceVersion"] = "1"
    elif words["0"] == "patch":
        answer = patch(known[name], json.loads(words["-p"]))
    elif name:
        sys.stdout.write(json.dumps(known[name]) if name in known else "")
        return
    else:
        label, _, wanted = words["--selector"].partition("=")
        items = [one for one in known.values() if one["metadata"].get("labels", {}).get(label) == wanted]
        sys.stdout.write(json.dumps({"metadata": {}, "items": items}))
        return
    file.write_text(json.dumps({**known, name: answer}))
    sys.stdout.write(json.dumps(answer))


def answer_others(words: dict[str, str]) -> bool:
    """Answer a call that is not about services. Return whether it was one."""
    if words["0"] == "create" or words["1"] == "secrets":
        keep_secrets(words)
    elif words["1"] == "controllerrevisions.v1.apps":
        show_records()
    elif words["1"] in LISTED:
        sys.stdout.write(json.dumps({"metadata": {}, "items": LISTED[words["1"]]}))
    else:
        return False
    return True


def main() -> None:
    with (FOLDER / "calls").open("a") as calls:
        calls.write(json.dumps(sys.argv[1:]) + "\n")
    if (FOLDER / "refusal").exists():
        fail((FOLDER / "refusal").read_text())
    words, file = parse(sys.argv[1:]), FOLDER / "object.json"
    if words["0"] == "port-forward":
        forward(words["1"].removeprefix("pod/"))
    if answer_others(words):
        return
    if words["1"] != RESOURCE or words["-o"] != "json":
        fail(f'error: the server doesn\'t have a resource type "{words["1"]}"')
    stored = json.loads(file.read_text())
    if "2" not in words:
        others = [{"metadata": {"name": name}} for name in ("chess", "draft")]
        sys.stdout.write(json.dumps({"metadata": {}, "items": [stored, *others]}))
        return
    if words["2"] != stored["metadata"]["name"]:
        fail(f'Error from server (NotFound): inferenceservices.millrace.dev "{words["2"]}" not found')
    if words["0"] == "patch":
        stored = patch(stored, json.loads(words["-p"]))
        file.write_text(json.dumps(stored))
    shown = (
        stored if "--show-managed-fields" in words else merge(stored, {"metadata": {"managedFields": None}})
    )
    sys.stdout.write(json.dumps(shown))
    for meanwhile in sorted(FOLDER.glob("meanwhile-*"))[:1]:  # what somebody else writes after this call
        file.write_text(json.dumps(merge(json.loads(file.read_text()), json.loads(meanwhile.read_text()))))
        meanwhile.unlink()


main()
