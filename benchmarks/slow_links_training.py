"""Train a small GPT by several ways to exchange less, and time its steps on a box (lesson 94).

    python benchmarks/slow_links_training.py choose [WAY ...]   # learning rates; once
    python benchmarks/slow_links_training.py every              # other numbers of local steps
    python benchmarks/slow_links_training.py train              # losses, in shared memory
    python benchmarks/slow_links_training.py steps              # times, on two hosts in a box
    python benchmarks/slow_links_training.py whole              # both at once, at 100 Mbit/s

Writes `data/measured/slow_links_training.csv`; a part replaces its own rows and keeps the others:

- `choose`: every way with each of `RATES`, the ways with outer steps also with each of
  `OUTER_RATES`, with seed 10 alone. The best are noted in `dlcourse.slow_training.WAYS`.
- `every`: two of them with fewer and more local steps, at the same rates, with seed 10.
- `train`: every way at these rates with three other seeds: the held-out loss after every 32 steps,
  and the bytes that a rank passes to collectives in a step. The link has no influence on them.
- `steps`: the time of a step (median and quartiles of rounds of 16 steps) over a link without a
  limit (0) and at three rates, ways in turns; as `model_ms` the prediction from the step without a
  limit, the bytes, and the links of `box.csv`. "waiting" is "streaming" where a rank waits for the
  time of its computing, with its core free.
- `whole`: trainings over the link from the first to the last step, the time until each look, and as
  `model_ms` the number of steps times the time of a step.

One rank per host; with fewer than two cores the times say little, and none are taken.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from dlcourse import measured, slow_links, slow_training
from dlcourse.slow_training import WAYS, Run, Way
from dlguide.cluster import Cluster, box
from dlguide.files import data_folder

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

CHOOSING, SEEDS = 10, (0, 1, 2)
RATES = (0.002, 0.004, 0.008, 0.016)
OUTER_RATES = (0.3, 0.7, 1.0)
EVERY = (4, 16, 64)
LINKS = (1e9, 3e8, 1e8)
ROUNDS = {1e9: 2, 3e8: 1, 1e8: 1}  # of 16 steps, in each of two turns
WHOLE = ("DiLoCo", "streaming", "top-k 1 %", "data parallel")
COLUMNS = (
    "part", "way", "every", "rate", "outer_rate", "seed", "mbit_per_s", "step", "loss_nats", "ms",
    "low_ms", "high_ms", "model_ms", "nbytes_per_step",
)  # fmt: skip


def train(comm: Comm, way: str | Way, seed: int) -> Run:
    """Train on all ranks."""
    run = slow_training.train(comm, way, seed)
    run.weights = None  # too many bytes to send back
    return run


def row(part: str, way: str, **values: Any) -> dict[str, Any]:
    """Return and print a row; what it does not have is empty."""
    own = {key: f"{v:.5g}" if isinstance(v, float) else v for key, v in values.items()}
    found = dict.fromkeys(COLUMNS, "") | {"part": part, "way": way} | own
    print(*(each for each in found.values() if each != ""), flush=True)
    return found


def settings(way: Way, seed: int) -> dict[str, Any]:
    """Return the columns that say how a way was trained."""
    return {"every": way.every, "rate": way.rate, "outer_rate": way.outer_rate or "", "seed": seed}


def choose(ways: list[str]) -> Iterator[dict]:
    """Train each way once with each rate."""
    with Cluster(ranks=2, magics=False) as cluster:
        for name in ways:
            outer_rates = OUTER_RATES if WAYS[name].outer_rate else (0.0,)
            for rate, outer in product(RATES, outer_rates):
                way = replace(WAYS[name], rate=rate, outer_rate=outer)
                run = cluster.run(train, way, CHOOSING)[0]
                last = {"step": run.look_at[-1], "loss_nats": run.loss_nats[-1]}
                yield row("choose", name, **settings(way, CHOOSING), **last)


def every() -> Iterator[dict]:
    """Train DiLoCo and plain local steps with more and fewer local steps."""
    with Cluster(ranks=2, magics=False) as cluster:
        for count, name in product(EVERY, ("DiLoCo", "local steps")):
            way = replace(WAYS[name], every=count)
            run = cluster.run(train, way, CHOOSING)[0]
            last = {"step": run.look_at[-1], "loss_nats": run.loss_nats[-1]}
            yield row("every", name, **settings(way, CHOOSING), **last)


def trainings() -> Iterator[dict]:
    """Train each way with its own rate and each seed."""
    with Cluster(ranks=2, magics=False) as cluster:
        for seed, (name, way) in product(SEEDS, WAYS.items()):
            run = cluster.run(train, name, seed)[0]
            nbytes = run.sent_nbytes // slow_training.STEPS
            for step, loss in zip(run.look_at, run.loss_nats, strict=True):
                numbers = {"step": step, "loss_nats": loss, "nbytes_per_step": nbytes}
                yield row("train", name, **settings(way, seed), **numbers)


def steps() -> Iterator[dict]:
    """Time steps over a link without a limit, and over each link."""

    def timed(way: str, mbit: int, seconds: list[float], model_s: float) -> dict:
        low, middle, high = 1e3 * np.quantile(seconds, (0.25, 0.5, 0.75))
        times = {"ms": float(middle), "low_ms": float(low), "high_ms": float(high)}
        return row(
            "steps", way, mbit_per_s=mbit, step=len(seconds), **times, model_ms=1e3 * model_s
        )

    links, free = slow_links.links_of(measured.load("box")), {}
    with box.hosts(2, None) as hosts, Cluster(hosts=hosts) as cluster:
        compute_s = cluster.run(slow_training.computing)[0]
        yield timed("computing", 0, [compute_s], compute_s)
        for name in WAYS:
            seconds = cluster.run(slow_training.rounds, name, 4)[0][0]
            free[name] = float(np.median(seconds))
            yield timed(name, 0, seconds, free[name])
        free["waiting"] = compute_s
        for bits_per_s in LINKS:
            hosts.rate(bits_per_s)
            found = {}
            for _ in range(2):  # a disturbance hits all ways alike
                for name in free:
                    job = ("streaming", compute_s) if name == "waiting" else (name, None)
                    few = ROUNDS[bits_per_s]
                    some, _ = cluster.run(slow_training.rounds, job[0], few, job[1])[0]
                    found.setdefault(name, []).extend(some)
            for name, seconds in found.items():
                way = "streaming" if name == "waiting" else name
                model_s = slow_training.predict(way, free[name], links[bits_per_s])
                yield timed(name, round(bits_per_s / 1e6), seconds, model_s)


def whole(table: list[dict]) -> Iterator[dict]:
    """Train over a link of 100 Mbit/s from the first to the last step."""
    with box.hosts(2, LINKS[-1]) as hosts, Cluster(hosts=hosts) as cluster:
        for name in WHOLE:
            runs = cluster.run(train, name, SEEDS[0])
            at = np.max([np.cumsum(run.step_s) for run in runs], axis=0)
            wanted = {"part": "steps", "way": name, "mbit_per_s": round(LINKS[-1] / 1e6)}
            (step_ms,) = [float(r["ms"]) for r in table if wanted.items() <= r.items()]
            numbers = settings(WAYS[name], SEEDS[0]) | {"mbit_per_s": wanted["mbit_per_s"]}
            at[-1] += max(run.finish_s for run in runs)
            for step, loss in zip(runs[0].look_at, runs[0].loss_nats, strict=True):
                times = {"ms": 1e3 * float(at[step - 1]), "model_ms": step * step_ms}
                yield row("whole", name, **numbers, step=step, loss_nats=loss, **times)


def main() -> None:
    """Measure one part, and write the table."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("part", choices=("choose", "every", "train", "steps", "whole"))
    options.add_argument("ways", nargs="*", help="for `choose`: only these, the others are kept")
    chosen = options.parse_args()
    there = (data_folder() / "measured" / "slow_links_training.csv").exists()
    kept = measured.load("slow_links_training").rows if there else []
    ways = chosen.ways or list(WAYS)
    parts = {
        "choose": lambda: choose(ways), "every": every, "train": trainings, "steps": steps,
        "whole": lambda: whole(kept),
    }  # fmt: skip
    own = ways if chosen.part == "choose" else None
    table = [r for r in kept if r["part"] != chosen.part or (own and r["way"] not in own)]
    for one in parts[chosen.part]():
        table.append(one)
        measured.write("slow_links_training", table, (CHOOSING, *SEEDS))


if __name__ == "__main__":
    main()
