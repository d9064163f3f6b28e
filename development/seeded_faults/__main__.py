"""`python -m development.seeded_faults draw | judge | check | table`, each with `--help`."""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from development.seeded_faults.draw import Fault, draw_faults
from development.seeded_faults.judge import LIMIT_SECONDS, OUT_OF_TIME, Judgement, find_flakes, judge
from development.seeded_faults.mutate import Kind
from development.seeded_faults.table import print_table

ROOT = Path(__file__).resolve().parents[2]
FAULTS = Path(__file__).with_name("faults.json")


def read_faults() -> list[Fault]:
    """Return the drawn faults."""
    return [Fault(**fault | {"kind": Kind(fault["kind"])}) for fault in json.loads(FAULTS.read_text())]


def read_judgements(path: Path | None) -> dict[str, Judgement]:
    """Return what was judged so far, by the faults' ids."""
    if path is None or not path.exists():
        return {}
    return {name: Judgement(**values) for name, values in json.loads(path.read_text()).items()}


def write(path: Path, value: object) -> None:
    """Write JSON at once or not at all."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n")
    new.replace(path)


def ran_out(judgement: Judgement) -> bool:
    """Whether tests were left when the time was over."""
    return OUT_OF_TIME in judgement.note


def judge_all(flags: argparse.Namespace) -> None:
    """Judge each fault that the results lack; with an earlier run's results, those alone that it found."""
    results = read_judgements(flags.results)
    first = {
        name: before.found_by for name, before in read_judgements(flags.first).items() if before.found_by
    }
    for fault in read_faults():
        is_asked = fault.id in flags.only if flags.only else flags.first is None or fault.id in first
        if not is_asked or (fault.id in results and not (flags.again and ran_out(results[fault.id]))):
            continue
        results[fault.id] = judge(fault, flags.tree, first.get(fault.id), flags.tests, flags.limit)
        print(fault.id, fault.kind, results[fault.id], flush=True)
        write(flags.results, {name: asdict(results[name]) for name in sorted(results)})


def drop_flakes(flags: argparse.Namespace) -> None:
    """Take out of the results what a test found that fails without a fault, too: it is to be judged again."""
    results = read_judgements(flags.results)
    found = {judged.found_by for judged in results.values() if judged.found_by}
    for test in find_flakes(sorted(found), flags.tree):
        print("fails without a fault:", test)
        results = {name: judged for name, judged in results.items() if judged.found_by != test}
    write(flags.results, {name: asdict(judged) for name, judged in results.items()})


def main(arguments: list[str]) -> int:
    """Run one sub-command."""
    parser = argparse.ArgumentParser(prog="python -m development.seeded_faults", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("draw", help="write faults.json")
    judging = commands.add_parser("judge", help="run the tests with each fault")
    judging.add_argument("--results", type=Path, required=True, help="read what it has, add what it lacks")
    judging.add_argument("--first", type=Path, help="an earlier run's results: its finding tests run first")
    judging.add_argument("--tree", type=Path, default=ROOT, help="a clone with .venv (default: this one)")
    judging.add_argument("--only", nargs="*", metavar="ID", help="these faults alone")
    judging.add_argument("--tests", nargs="*", help="these tests alone, such as end-to-end tests")
    judging.add_argument("--limit", type=float, default=LIMIT_SECONDS, metavar="SECONDS")
    judging.add_argument("--again", action="store_true", help="judge again what ran out of time")
    checking = commands.add_parser("check", help="run what found a fault without it; drop what fails")
    checking.add_argument("--results", type=Path, required=True)
    checking.add_argument("--tree", type=Path, default=ROOT)
    table = commands.add_parser("table", help="compare two runs, in Markdown")
    table.add_argument("before", type=Path)
    table.add_argument("after", type=Path)
    flags = parser.parse_args(arguments)
    if flags.command == "draw":
        write(FAULTS, [asdict(fault) for fault in draw_faults()])
    elif flags.command == "judge":
        judge_all(flags)
    elif flags.command == "check":
        drop_flakes(flags)
    else:
        print_table(read_faults(), read_judgements(flags.before), read_judgements(flags.after))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
