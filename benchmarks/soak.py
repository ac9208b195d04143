"""Let ranks fail in every way, many times over, and count what went wrong.

    python benchmarks/soak.py --times 20

Three numbers must be 0: calls that hung or blamed the wrong thing, runs after a failure that did
not give the right sum, and processes or files that were left behind. The seconds from the call to
its end, and of the next run, are printed as median and largest. Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import cloudpickle
import failures

from dlguide.cluster import Cluster, RankError, processes


def once(cluster, fail):
    """Fail once; return what was wrong, seconds until the error, seconds of the next run."""
    kind, ranks = failures.KINDS[fail]
    wrong = []
    if "horovod" in fail.__name__:
        cluster.run(failures.starts_horovod)
    started = time.monotonic()
    try:
        cluster.run(fail)
        wrong.append("no error")
    except RankError as error:
        if error.kind != kind or (ranks is not None and error.ranks != ranks):
            wrong.append(f"{error.kind} {error.ranks} for {kind} {ranks}")
    ended = time.monotonic()
    if cluster.client is None and [e for e in processes.living() if e.cluster == cluster.name]:
        wrong.append("processes left")
    if cluster.run(failures.is_well) != [3, 3]:
        wrong.append("wrong sum afterwards")
    return wrong, ended - started, time.monotonic() - ended


def main() -> int:
    """Print one line per kind of failure; the exit status is 1 when anything went wrong."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--times", type=int, default=20, help="how often each failure happens")
    options.add_argument("--only", default="", help="kinds whose name this pattern is found in")
    chosen = options.parse_args()
    times = chosen.times
    kinds = [fail for fail in failures.KINDS if re.search(chosen.only, fail.__name__)]
    cloudpickle.register_pickle_by_value(failures)
    shared_before = set(Path("/dev/shm").glob("mpich_shm*"))
    total = 0
    with Cluster(ranks=2) as cluster:
        print(f"{'failure':32} {'wrong':>5}  {'error after s':>18}  {'next run s':>18}")
        for fail in kinds:
            tries = [once(cluster, fail) for _ in range(times)]
            wrong = [text for texts, _, _ in tries for text in texts]
            total += len(wrong)
            columns = [[each[i] for each in tries] for i in (1, 2)]
            shown = [f"{statistics.median(c):7.1f} max {max(c):6.1f}" for c in columns]
            print(f"{fail.__name__:32} {len(wrong):5}  {shown[0]:>18}  {shown[1]:>18}", flush=True)
            for text in wrong:
                print(f"    {text}", flush=True)
    left = [*processes.leftovers(), *(set(Path("/dev/shm").glob("mpich_shm*")) - shared_before)]
    print(f"{total} wrong, {len(left)} left behind")
    return 1 if total or left else 0


if __name__ == "__main__":
    sys.exit(main())
