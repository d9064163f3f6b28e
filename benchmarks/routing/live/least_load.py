"""`python -m benchmarks.routing.live.least_load`: our gateway, which looks at no request's beginning.

So it takes the replica with the least load, by its own requests and the replica's reports.
"""

import runpy

from millrace_gateway.route.preference import Preferences


def read_nothing(self: Preferences, *_: object) -> None:
    """Stand in for `Preferences.read`."""


if __name__ == "__main__":
    Preferences.read = read_nothing  # type: ignore[assignment, method-assign]
    runpy.run_module("benchmarks.gateway.in_pod", run_name="__main__", alter_sys=True)
