"""`kubectl millrace models`: which models there are, where they are kept, how large, and who uses them."""

import argparse

from millrace_kubectl.kubectl import Services
from millrace_kubectl.models import render_models

SUMMARY = "which models there are, where they are kept, how large, used by whom"
DESCRIPTION = """List the models of the namespace's services, and of earlier revisions those that a claim
still has. It takes the right to list inferenceservices and controllerrevisions, and looks into no volume."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `models` needs."""
    parser.add_argument("-A", "--all-namespaces", action="store_true", help="those of all namespaces")


def run(arguments: argparse.Namespace, services: Services, now: float) -> str:  # noqa: ARG001  as its siblings
    """Return the table. Raises PluginError."""
    everywhere = arguments.all_namespaces
    found = services.list_all(everywhere=everywhere)
    return render_models(found, services.list_revisions(everywhere=everywhere), has_namespaces=everywhere)
