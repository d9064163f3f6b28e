"""What imports do not show: which tests read a file that is no Python, or start a process that imports it."""

from collections.abc import Iterable

ALL = ("tests",)
SMOKE = "e2e/test_path.py::test_apply_serve_and_delete"
"""Operator, gateway, replica, chart, CRD and images on a local cluster."""

READERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("charts/", ("tests/monitoring", "tests/node_cache", "tests/operator/test_chart.py", "tests/docs")),
    ("crds/", ("tests/operator/api", "tests/docs")),
    ("docs/", ("tests/docs", "tests/kubectl")),
    ("examples/", ("tests/docs", "tests/operator/api")),
    ("images/", ("tests/cluster", "tests/cluster_nodes")),
    ("benchmarks/", ("tests/benchmarks", "tests/docs")),
    ("development/", ("tests/development",)),
    ("e2e/cluster/controlplane/", ("tests/cluster",)),
    ("e2e/cluster/", ("tests/cluster", "tests/cluster_nodes")),
    ("e2e/", ()),
    ("kernels/", ("tests/kernels", "tests/runtime/execution")),
    ("operator/millrace_kubectl/", ("tests/kubectl",)),
    ("operator/millrace_node_cache/", ("tests/node_cache",)),
    ("operator/millrace_operator/", ("tests/operator/app", "tests/operator/test_no_torch.py")),
    ("runtime/millrace_runtime/demo/", ("tests/runtime/replica", "tests/stories_training")),
    ("runtime/millrace_runtime/", ("tests/runtime/replica",)),
    ("runtime/millrace_gateway/", ("tests/gateway/test_command.py",)),
    ("runtime/millrace_fetch/", ("tests/fetch/test_command.py", "tests/fetch/test_kills.py")),
    ("runtime/millrace_", ()),
    ("runtime/stories_training/", ("tests/stories_training",)),
    ("operator/millrace_kubernetes/", ("tests/kubernetes",)),
    ("Makefile", ("tests/docs", "tests/development")),
    (".github/", ()),
    (".ci/", ()),
    ("CHANGELOG.md", ()),
    ("SECURITY.md", ("tests/docs",)),
    (".editorconfig", ()),
    (".pre-commit-config.yaml", ()),
    ("renovate.json", ()),
    ("CONTRIBUTING.md", ("tests/docs",)),
    ("README.md", ("tests/docs",)),
    ("LICENSE", ()),
    ("tests/budget.toml", ("tests/testing",)),
    ("testing/addresses.py", ()),
)
"""The first that a path begins with counts, beside those that import it. A path of none of them runs all."""


def list_readers(changed: Iterable[str]) -> set[str]:
    """Return folders and files of tests for changed files, as far as imports do not show them.

    A file of tests that is no Python (a golden page, say) is read in its own folder.
    """
    found: set[str] = set()
    for file in changed:
        if file.startswith("tests/") and file.count("/") > 1:
            found |= set() if file.endswith(".py") else {first_folder(file)}
        elif file != "tests/conftest.py":
            found |= set(next((readers for start, readers in READERS if file.startswith(start)), ALL))
    return found


def first_folder(file: str) -> str:
    """Return `tests/part` of a file somewhere below it."""
    return "/".join(file.split("/")[:2])
