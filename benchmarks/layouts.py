"""Compare the planner's step time with measured steps, for all layouts that fit on 2 and 4 ranks.

    python benchmarks/layouts.py

Computing is a calibrated wait (4 ranks share fewer cores otherwise), messages are real. The links
are measured before, by allreduces of one size among 2 and among all ranks; nothing is fitted to the
steps. Each net is run with two speeds, so that messages are a small and a large part of the step.
Writes data/measured/layouts.csv: layout, predicted and measured step (median, lowest, highest).
Prints |predicted / measured - 1|, and how much longer the layout that the planner
prefers takes than the fastest one.
"""

from __future__ import annotations

import argparse
import statistics
from itertools import product
from operator import itemgetter

from report import report

from dlcourse import measured, waiting_ranks
from dlcourse.parallel import layout_planner
from dlguide.cluster import Cluster
from dlguide.scaling.costs import Link

SERIALS_S, BATCH, MICROBATCHES, REPEATS = (1.2, 0.3), 16, 4, 5  # computing on one rank


def links(ranks: int) -> list[tuple[float, float]]:
    """Measure the link among all ranks, and in pairs."""
    from mpi4py import MPI

    return [waiting_ranks.measured_link(MPI.COMM_WORLD, count) for count in (ranks, 2)]


def steps(cases: list[tuple]) -> list[list[float]]:
    """Run all layouts in turns; return the seconds of each step."""
    from mpi4py import MPI

    built = [waiting_ranks.WaitingLayout(MPI.COMM_WORLD, *case) for case in cases]
    found: list[list[float]] = [[] for _ in built]
    for number in range(1 + REPEATS):
        for layout, row in zip(built, found, strict=True):
            seconds = MPI.COMM_WORLD.allreduce(layout.step(), MPI.MAX)
            if number:  # the first one makes communicators
                row.append(seconds)
    for layout in built:
        layout.free()
    return found


def main() -> None:
    """Measure, write the table, print the summary."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--no-write", action="store_true", help="print only")
    chosen, rows = options.parse_args(), []
    for ranks in (2, 4):
        with Cluster(ranks=ranks, oversubscribe=True, magics=False) as cluster:
            for (name, net), serial_s in product(waiting_ranks.NETS.items(), SERIALS_S):
                flops_per_s = BATCH * net.training_flops / serial_s
                (whole, pair) = cluster.run(links, ranks)[0]
                machine = layout_planner.RankSpeeds(
                    flops_per_s, *whole, 1e12, ranks_per_node=2, inside=Link(*pair)
                )
                plan = layout_planner.plan_layout(
                    net, ranks, machine, BATCH, MICROBATCHES, value_bytes=4
                )
                plan = [one for one in plan if one.context == 1]
                cases = [
                    (net, (o.data, o.tensor, o.pipeline), flops_per_s, BATCH, MICROBATCHES)
                    for o in plan
                ]
                for one, seconds in zip(plan, cluster.run(steps, cases)[0], strict=True):
                    median = statistics.median(seconds)
                    rows.append(
                        {
                            "ranks": ranks,
                            "net": name,
                            "serial_s": serial_s,
                            "layout": one.name,
                            "predicted_s": round(one.step_s, 5),
                            "exchange_s": round(one.exchange_s, 5),
                            "bubble_s": round(one.bubble_s, 5),
                            "measured_s": round(median, 5),
                            "low_s": round(min(seconds), 5),
                            "high_s": round(max(seconds), 5),
                        }
                    )
                    print(ranks, f"{name:12} {serial_s} s {one.name:22}", end=" ")
                    print(f"predicted {one.step_s:.3f} s, measured {median:.3f} s", end=" ")
                    print(f"({min(seconds):.3f} to {max(seconds):.3f}), {one.step_s / median:.2f}")
    summary(rows)
    if not chosen.no_write:
        print(measured.write("layouts", rows, seeds=["none"]))


def summary(rows: list[dict]) -> None:
    """Print the two numbers."""
    errors = [abs(row["predicted_s"] / row["measured_s"] - 1) for row in rows]
    spreads = [(row["low_s"], row["measured_s"], row["high_s"]) for row in rows]
    what = f"planned / measured step, distance from 1, of {len(rows)} layouts"
    report(what, errors, seconds=spreads)
    case = itemgetter("ranks", "net", "serial_s")
    for each in dict.fromkeys(map(case, rows)):
        own = [row for row in rows if case(row) == each]
        first = min(own, key=lambda row: row["predicted_s"])
        best = min(own, key=lambda row: row["measured_s"])
        print(*each, f"s: its choice {first['layout']} takes", end=" ")
        print(f"{first['measured_s'] / best['measured_s']:.2f} times the best ({best['layout']})")


if __name__ == "__main__":
    main()
