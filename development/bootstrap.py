"""From a fresh clone to what make needs: the environment and the cluster's parts, side by side.

`python3 -m development.bootstrap [--only-checks]` imports the standard library and ours alone. A second run
finds everything made. `--only-checks` looks for what the tests need, and makes nothing.
"""

import sys
from concurrent.futures import ThreadPoolExecutor

from development.environment import check_means, install_environment, run_command, say
from e2e.cluster.build import get_programs
from e2e.cluster.errors import ClusterError
from e2e.cluster.prechecks import INSTALL_COMPILER, check_machine, check_tests, has_compiler
from e2e.cluster.progress import Say
from e2e.cluster.settings import REPOSITORY
from e2e.cluster.sources import PARTS, cache_folder, choose_source

INTERRUPTED = 130
"""The exit status that shells give to what Ctrl-C ended."""


def main(argv: list[str]) -> int:
    """Check, or make what is missing; return the exit status."""
    try:
        return run_command(check_tests if "--only-checks" in argv else lambda: bootstrap(say))
    except KeyboardInterrupt:
        say("interrupted; what is made already is kept")
        return INTERRUPTED


def bootstrap(say: Say) -> None:
    """Install the environment and get the cluster's parts, side by side. Raises ClusterError."""
    check_before(say)
    with ThreadPoolExecutor(1) as installer:
        environment = installer.submit(install_environment, say)
        try:
            get_programs(say)
        except (ClusterError, OSError) as error:
            if not environment.done():
                say(f"failed: {error}; the environment is finished first, as the next try needs it too")
            raise
    environment.result()


def check_before(say: Say) -> None:
    """Refuse before anything is downloaded what would fail afterwards. Raises PrecheckFailedError."""
    cache = cache_folder()
    must_build = any(choose_source(part, cache).must_build for part in PARTS)
    check_means()
    check_machine(REPOSITORY / ".millrace", cache, must_build=must_build)
    if not has_compiler():
        say(f"up: without a C++ compiler replicas compute with torch, slowly; {INSTALL_COMPILER}")
    if must_build:
        say("up: a first time takes several minutes; a later one finds everything made")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
