"""`python -m testing.affected`: run the tests that the change can turn red, or show which these are.

The change is what is not committed; where all is committed, the last commit. `--base REVISION` takes all
since that revision.
"""

import argparse
import subprocess
import sys

from testing.affected.choose import Choice, choose_tests
from testing.lanes import ROOT, run_lane


def main(argv: list[str]) -> int:
    """Return pytest's status: the first that is not 0."""
    parser = argparse.ArgumentParser(prog="python -m testing.affected", description=__doc__)
    parser.add_argument("--base", help="take the change since this revision")
    parser.add_argument("--only-show", action="store_true", help="print the tests, and run none")
    arguments = parser.parse_args(argv)
    changed = list_changed(arguments.base)
    choice = choose_tests(ROOT, list_files(), changed)
    print(f"check: {len(changed)} files changed, {len(choice.units)} files of unit tests", flush=True)
    if arguments.only_show:
        print("\n".join((*choice.units, *choice.end_to_end)))
        return 0
    return run(choice)


def run(choice: Choice) -> int:
    """Run unit tests, and then, where these pass, those on a cluster."""
    lanes = (("units", choice.units), ("e2e", choice.end_to_end), ("e2e-alone", choice.end_to_end))
    for lane, tests in lanes:
        if tests and (status := run_lane(lane, tests)):
            return status
    return 0


def list_changed(base: str | None) -> list[str]:
    """Return changed files: since `base`, else those not committed, else those of the last commit."""
    untracked = git("ls-files", "--others", "--exclude-standard")
    if base:
        return sorted({*diff(base), *untracked})
    return sorted({*diff("HEAD"), *untracked}) or diff("HEAD~1")


def diff(revision: str) -> list[str]:
    """Return the files that differ from a revision. A moved file has its old and its new name."""
    return git("diff", "--no-renames", "--name-only", revision)


def list_files() -> list[str]:
    """Return the files that git knows or may take, those that are there."""
    return [file for file in git("ls-files", "-co", "--exclude-standard") if (ROOT / file).is_file()]


def git(*arguments: str) -> list[str]:
    """Return the lines that git prints. Raises CalledProcessError."""
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
