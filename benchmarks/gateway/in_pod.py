"""`python -m benchmarks.gateway.in_pod`: `millrace gateway` with a namespace of its own, as in a pod.

With a kubeconfig it knows no namespace of its own, and so reads no Secret with keys.
"""

import asyncio
import dataclasses
import logging
import os
import sys

import uvloop

from millrace_gateway.command import read_settings, run_gateway
from millrace_kubernetes.access import load_access


def main(argv: list[str]) -> int:
    """Run the gateway until SIGTERM."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    settings = dataclasses.replace(read_settings(argv), own_namespace=os.environ["POD_NAMESPACE"])
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run_gateway(settings, load_access(os.environ)))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
