"""Many simulations on several CPUs, and what is known of them already."""

import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import NamedTuple

from benchmarks.autoscaler.jobs import Bench, Job, Result
from benchmarks.autoscaler.kept import Kept
from millrace_operator.autoscaler.simulate.policies.contestants import CLAIRVOYANT, OURS


class Runner(NamedTuple):
    """Runs jobs, and keeps what comes out."""

    bench: Bench
    num_processes: int
    kept: Kept | None = None
    """None: what a run that is cut off had found is lost."""

    def run(self, jobs: Iterable[Job], title: str) -> dict[Job, Result]:
        """Run what isn't known, and say on standard error how far it is. Long ones come first."""
        known = self.kept.results if self.kept else {}
        wanted = sorted(set(jobs), key=lambda job: (-_weigh(job), repr(job)))
        results = {job: known[job] for job in wanted if job in known}
        with ProcessPoolExecutor(self.num_processes) as pool:
            futures = {pool.submit(self.bench.run, job): job for job in wanted if job not in results}
            for future in as_completed(futures):
                job, result = futures[future], future.result()
                results[job] = result
                if self.kept:
                    self.kept.add(job, result)
                print(
                    f"{title} {len(results)}/{len(wanted)}: {job.workload} {job.policy} {job.knob:g}"
                    f" -> {result.attainment:.4f} in time with {result.average_replicas:.2f} replicas",
                    file=sys.stderr,
                    flush=True,
                )
        return results


def _weigh(job: Job) -> float:
    order = ("W1", "W3", "W2", "W4", "W5", "W6").index(job.workload)
    return order + 10 * (job.policy == CLAIRVOYANT) + (job.policy == OURS)
