"""The command that a remedy comes with, out of a condition's message."""

from typing import Any

import pytest

from millrace_kubectl.facts import Facts
from millrace_kubectl.remedies import find_remedies


def degraded(reason: str, message: str, **metadata: Any) -> Facts:
    condition = {"type": "Degraded", "status": "True", "reason": reason, "message": message}
    spec = {"scaling": {"mode": "External"}}
    return Facts(
        {"metadata": {"name": "chat", **metadata}, "spec": spec, "status": {"conditions": [condition]}}, 0.0
    )


@pytest.mark.parametrize(
    ("reason", "message", "expected"),
    [
        (
            "Crashing",
            "pod chat-5d-x9 ended: boom (exit status 1, first time)",
            "kubectl logs chat-5d-x9 --previous",
        ),
        (
            "Crashing",
            "pod chat-5d-x9 was killed (SIGKILL, exit status 137, first time), and nothing says why",
            "kubectl describe pod chat-5d-x9",
        ),
        (
            "SidecarFailed",
            "container istio-proxy of pod chat-5d-x9 ended (exit status 1, again and again)",
            "kubectl logs chat-5d-x9 -c istio-proxy --previous",
        ),
        ("ImageUnavailable", "pod chat-5d-x9: ErrImagePull: denied", "kubectl describe pod chat-5d-x9"),
        (
            "PodsRefused",
            'pods are refused: pods "chat-1" is forbidden: exceeded quota: gpus',
            "kubectl describe quota",
        ),
    ],
)
def test_it_names_the_pod_and_the_namespace(reason: str, message: str, expected: str) -> None:
    (remedy,) = find_remedies(degraded(reason, message, namespace="shop"))
    assert remedy.endswith(f": {expected} -n shop")


def test_where_no_pod_is_named_the_words_stay_alone() -> None:
    assert list(find_remedies(degraded("Crashing", "all pods failed", namespace="shop"))) == [
        "read the pod's log"
    ]


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("SecretNamespaceNotReadable", "the chart's gateway.secretNamespaces"),
        ("SecretNameMissing", "spec.access.authentication.secretName"),
        ("KeysReadable", ""),
    ],
)
def test_keys_that_the_gateway_can_not_read_have_a_remedy(reason: str, words: str) -> None:
    condition = {"type": "AccessReady", "status": str(reason == "KeysReadable"), "reason": reason}
    service = {"metadata": {"name": "chat"}, "spec": {}, "status": {"conditions": [condition]}}
    found = [one for one in find_remedies(Facts(service, 0.0)) if "ecret" in one]
    assert (len(found), words in "".join(found)) == (bool(words), True)


def test_a_policy_that_refuses_pods_is_no_quota() -> None:
    assert list(find_remedies(degraded("PodsRefused", "pods are refused: no root", namespace="shop"))) == [
        "change the policy"
    ]


def test_an_object_without_a_namespace_gets_none() -> None:
    (remedy,) = find_remedies(degraded("Crashing", "pod chat-5d-x9 ended (exit status 1, first time)"))
    assert remedy.endswith(": kubectl logs chat-5d-x9 --previous")
