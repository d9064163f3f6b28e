"""Makes an empty virtual environment, or says in one line why this Python can't."""

import subprocess
import sys
import venv
from pathlib import Path

from e2e.cluster.errors import BuildFailedError

LACKS_PIP = (
    f"{sys.executable} can't make a virtual environment with pip; on Debian and Ubuntu write: "
    "sudo apt-get install python3-venv"
)


def make_environment(folder: Path, part: str) -> None:
    """Make one with pip, in place of what is there; `part` needs it. Raises BuildFailedError."""
    try:
        venv.create(folder, with_pip=True, clear=True)
    except subprocess.CalledProcessError as error:
        reason = (error.stdout or b"").decode(errors="replace").strip().splitlines()[-1:] or [str(error)]
        raise BuildFailedError(part, reason[0], folder) from error
    except SystemExit as error:  # how Debian's venv ends where python3-venv is not installed
        raise BuildFailedError(part, LACKS_PIP, folder) from error
