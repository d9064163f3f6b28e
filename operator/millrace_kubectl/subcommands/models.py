"""`kubectl millrace models`: which models there are, where they are kept, how large, and who uses them."""

import argparse

from millrace_kubectl.kubectl import Services
from millrace_kubectl.models import is_any_on_nodes, render_models

SUMMARY = "which models there are, where they are kept, how large, used by whom"
DESCRIPTION = """List the models of the namespace's services, and of earlier revisions those that a claim
or nodes may still have. It takes the right to list inferenceservices and controllerrevisions. Whoever may
list nodes sees which of them keep a model. It looks into no volume."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `models` needs."""
    parser.add_argument("-A", "--all-namespaces", action="store_true", help="those of all namespaces")


def run(arguments: argparse.Namespace, services: Services, now: float) -> str:  # noqa: ARG001  as its siblings
    """Return the table. Raises PluginError."""
    everywhere = arguments.all_namespaces
    found = services.list_all(everywhere=everywhere)
    revisions = services.list_revisions(everywhere=everywhere)
    nodes = services.list_nodes() if is_any_on_nodes(revisions) else None
    return render_models(found, revisions, nodes, has_namespaces=everywhere)
