"""Is it the ranks or their threads that make crowded cores slow? Images/s of each division.

The tuner trains the MNIST network with TensorFlow, always with the same global batch, with 1, 2 and
4 ranks: with their share of the threads, with all threads, bound and free. Every search measures
its candidates in turns; several searches show the spread.

    python benchmarks/crowded_cores.py

Writes data/measured/crowded_cores.csv, which lesson 31 shows.
"""

from __future__ import annotations

from dlcourse import measured
from dlguide import machine, tuning

SEARCHES, BUDGET_S = 3, 60.0


def main() -> None:
    """Run the searches and write one row per candidate and search."""
    cores = machine.describe().usable_cores
    share, own = max(cores // 2, 1), max(cores // 4, 1)
    settings = {
        "1 rank, all threads": (1, cores, False),
        "2 ranks, their share, bound": (2, share, True),
        "2 ranks, their share": (2, share, False),
        "2 ranks, all threads": (2, cores, False),
        "4 ranks, their share": (4, own, False),
        "4 ranks, all threads": (4, cores, False),
    }
    candidates = {
        tuning.Candidate(ranks, threads, min(threads, 2), bound=bound): name
        for name, (ranks, threads, bound) in settings.items()
    }
    rows = []
    for search in range(SEARCHES):
        found = tuning.tune(
            "mnist_cnn",
            global_batch=32,
            budget_s=BUDGET_S,
            keep=False,
            show=False,
            candidates=list(candidates),
        )
        for row in found.result.rows:
            each = row.candidate
            rows.append({
                "search": search,
                "setting": candidates[each],
                "ranks": each.ranks,
                "threads": each.threads,
                "threads_per_core": each.ranks * each.threads / cores,
                "images_per_s": round(row.median, 1),
            })  # fmt: skip
            print(rows[-1], row.error or "", flush=True)
    measured.write("crowded_cores", rows, seeds=[0])


if __name__ == "__main__":
    main()
