"""Compare the tuner's choice with the best of an exhaustive grid, and with TensorFlow's default.

    python benchmarks/tuner_against_grid.py
    python benchmarks/tuner_against_grid.py --budget 25 --effort 1 --turns 2

The tuner searches first. Then every combination of ranks, threads, inter-op threads and binding
is measured with equal effort, in two turns of opposite order. At the end the tuner's choice, the
grid's best and TensorFlow's default take turns, and the ratios are taken turn by turn. Goals: the
choice within 3 % of the grid's best, in at most a third of the grid's time, and 1.3 times the
default. Beside the last one stands its ceiling: independent processes of one thread, one pinned
to each core, that together take the global batch and never wait for each other. Nothing else
should run meanwhile. Both times include the start of the ranks.
"""

from __future__ import annotations

import argparse
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from report import compare, report

from dlguide import tuning
from dlguide.machine import describe
from dlguide.tuning import Candidate
from dlguide.tuning.ranks import RankTeams


def exhaustive(machine, batch):
    """List every combination up to all cores, and twice as many ranks as cores."""
    usable, found = machine.usable_cores, {}
    each = [tuning.default_candidate(machine)]
    each += [
        Candidate(ranks, count, inter_op, bound)
        for ranks in (*range(1, usable + 1), 2 * usable)
        for count in range(1, usable + 1)
        for inter_op in (1, 2)
        for bound in (True, False)
        if ranks <= usable or count == 1
    ]
    for one in each:
        plan = one.plan(machine)
        if batch % one.ranks == 0:
            found.setdefault((plan.ranks, plan.threads, one.inter_op, plan.cpus, one.default), one)
    return list(found.values())


def speed(teams, candidate, seconds):
    """Train a candidate for some seconds; return its median images/s."""
    return statistics.median(teams.measure(candidate, seconds))


def alone(machine, task, turns, seconds):
    """Train one process per core, each pinned and on its own; return the sum of their images/s."""
    cores = {core.core: core.cpu for core in reversed(machine.cores)}
    pins = sorted(cores.values())[: machine.usable_cores]
    # starts are told apart by their inter-op threads, of which a net without branches uses one
    each = {Candidate(1, 1, number): cpu for number, cpu in enumerate(pins, 1)}
    sums = []
    with RankTeams(
        machine, replace(task, global_batch=task.global_batch // len(pins)), each
    ) as teams:
        teams.start_all(60.0, lambda ready, starts: None)
        crews = list(zip(teams.teams.values(), each.values(), strict=True))
        with ThreadPoolExecutor(len(crews)) as pool:
            for _ in range(turns):
                runs = [pool.submit(team.measure, ((cpu,),), seconds) for team, cpu in crews]
                sums.append(sum(statistics.median(run.result()) for run in runs))
    return sums


def times(speeds):
    """Turn images/s into seconds per image."""
    return [1 / each for each in speeds]


def main() -> None:
    """Print both choices, their times and the ratios."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--net", default="mnist_cnn")
    options.add_argument("--batch", type=int, default=100, help="images of a step over all ranks")
    options.add_argument("--budget", type=float, default=50.0, help="the tuner's time (s)")
    options.add_argument("--effort", type=float, default=7.0, help="time per candidate (s)")
    options.add_argument("--turns", type=int, default=9, help="turns at the end")
    chosen = options.parse_args()
    machine = describe()
    found = tuning.tune(chosen.net, chosen.batch, chosen.budget, keep=False)
    task, default = found.task, tuning.default_candidate(machine)

    crowds = [
        each
        for each in (tuning.default_candidate(machine, 2), tuning.default_candidate(machine, 4))
        if chosen.batch % each.ranks == 0
    ]
    grid = exhaustive(machine, chosen.batch)
    begin = time.monotonic()
    with RankTeams(machine, task, [*grid, found.result.best, *crowds]) as teams:
        crowd_starts = {key for key in teams.candidates if key.default and key.ranks > 1}
        later = {key: teams.candidates.pop(key) for key in crowd_starts}
        teams.start_all(120.0, lambda ready, starts: None)
        speeds: dict[Candidate, list[float]] = {each: [] for each in grid}
        for order in (grid, grid[::-1]):
            for each in order:
                speeds[each] += teams.measure(each, chosen.effort / 2)
        grid_s = time.monotonic() - begin
        table = sorted(grid, key=lambda each: -statistics.median(speeds[each]))
        print(f"\n{len(grid)} candidates of the grid, images/s:")
        for each in table:
            print(f"  {statistics.median(speeds[each]):7.0f}  {each}")
        best = table[0]

        teams.candidates |= later
        contest = dict.fromkeys([found.result.best, best, default, *crowds])
        turns: dict[Candidate, list[float]] = {each: [] for each in contest}
        for turn in range(chosen.turns):
            for each in list(contest)[:: 1 if turn % 2 == 0 else -1]:
                turns[each].append(speed(teams, each, 0.9))
    ceiling = alone(machine, task, chosen.turns, 0.9)

    print(f"\ntuner: {found.result.best}\ngrid:  {best}\n")
    choice = times(turns[found.result.best])
    compare("speed of the tuner's choice / the grid's best", choice, times(turns[best]), least=0.97)
    report("time of the tuner / of the grid", [found.used_s / grid_s], most=1 / 3)
    share = statistics.median(ceiling) * statistics.median(choice)
    for each in (default, *crowds):
        name = f"{each.ranks} ranks without settings" if each in crowds else "TensorFlow's default"
        least = 1.3 if each == default else None
        compare(
            f"speed of the tuner's choice / {name}",
            choice,
            times(turns[each]),
            least,
            share=1 / share,
        )


if __name__ == "__main__":
    main()
