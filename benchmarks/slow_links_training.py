"""Train a small GPT by several ways to exchange less, and time its steps on a box (lesson 94).

    python benchmarks/slow_links_training.py choose     # learning rates
    python benchmarks/slow_links_training.py every      # other numbers of local steps
    python benchmarks/slow_links_training.py longer     # twice as many steps
    python benchmarks/slow_links_training.py larger     # four times the batch
    python benchmarks/slow_links_training.py train      # losses, in shared memory
    python benchmarks/slow_links_training.py rarer      # DiLoCo with 64 local steps
    python benchmarks/slow_links_training.py steps      # times, on two hosts in a box
    python benchmarks/slow_links_training.py whole      # both at once, at 100 Mbit/s

A part writes its rows of `data/measured/slow_links_training.csv` one by one and keeps the others;
trainings in shared memory that are there already are not repeated, so a part may be interrupted.

- `choose`: every way with each of `RATES`, and with the next one beyond the better of them (half or
  twice); the ways with outer steps with each pair of `OUTER`, the last rate with the best pair.
  Seed 10 alone. The best are noted in `dlcourse.slow_training.WAYS`.
- `every`: two of them with fewer and more local steps, at the same rates, with seed 10.
- `longer`: DiLoCo and data parallel for twice as many steps, at the same rates, three other seeds.
- `larger`: three ways with four times the batch, at the same rates, with seed 10.
- `train`: every way at its best rates with three other seeds: the held-out loss after every 32
  steps, and the bytes that a rank passes to collectives in a step. The link does not change them.
- `rarer`: DiLoCo with 64 local steps, the rates chosen for 16: losses, and steps at 100 Mbit/s.
- `steps`: the time of a step (median and quartiles of rounds of 16 steps, one in each turn) over a
  link without a limit (0) and at three rates, rates and ways in turns; as `model_ms` the prediction
  from the step without a limit, the bytes, and the links of `box.csv`. "waiting" is "streaming"
  where a rank waits for the time of its computing, with its core free.
- `whole`: trainings over the link from the first to the last step, the time until each look, and as
  `model_ms` the number of steps times the time of a step.

One rank per host; with fewer than two cores the times say little, and none are taken.
"""

from __future__ import annotations

import argparse
import sys
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
RATES = (0.001, 0.002)
OUTER = ((0.3, 0.9), (0.7, 0.5), (1.0, 0.5))  # outer rates, each with a momentum
EVERY = (4, 8, 64)
LINKS = (1e9, 3e8, 1e8)
TURNS = 6
WHOLE = ("data parallel", "DiLoCo", "streaming")
COLUMNS = (
    "part", "way", "every", "rate", "outer_rate", "momentum", "seed", "mbit_per_s", "step",
    "loss_nats", "ms", "low_ms", "high_ms", "model_ms", "nbytes_per_step",
)  # fmt: skip


def train(
    comm: Comm,
    way: str | Way,
    seed: int,
    steps: int = slow_training.STEPS,
    windows: int = slow_training.WINDOWS,
) -> Run:
    """Train on all ranks."""
    run = slow_training.train(comm, way, seed, steps, windows=windows)
    run.weights = None  # too many bytes to send back
    return run


def row(part: str, way: str, **values: Any) -> dict[str, Any]:
    """Return and print a row; what it does not have is empty."""
    own = {key: f"{v:.5g}" if isinstance(v, float) else v for key, v in values.items()}
    found = dict.fromkeys(COLUMNS, "") | {"part": part, "way": way} | own
    print(*(each for each in found.values() if each != ""), flush=True)
    return found


def quartiles(seconds: list[float]) -> dict[str, float]:
    """Return median and quartiles of some times (ms)."""
    low, middle, high = 1e3 * np.quantile(seconds, (0.25, 0.5, 0.75))
    return {"ms": float(middle), "low_ms": float(low), "high_ms": float(high)}


def one(
    cluster: Cluster,
    kept: list[dict],
    part: str,
    name: str,
    way: Way,
    seed: int,
    steps: int = slow_training.STEPS,
    windows: int = slow_training.WINDOWS,
) -> Iterator[dict]:
    """Yield the rows of one training, those that are kept or new ones."""
    outer = {"outer_rate": way.outer_rate or "", "momentum": way.momentum if way.outer_rate else ""}
    about = {"every": way.every, "rate": way.rate} | outer | {"seed": seed}
    wanted = ({"part": part, "way": name} | about).items()
    there = [r for r in kept if wanted <= r.items()]
    if there:
        yield from there
        return
    run = cluster.run(train, way, seed, steps, windows)[0]
    about["nbytes_per_step"] = run.sent_nbytes // steps
    looks = list(zip(run.look_at, run.loss_nats, strict=True))
    for step, loss in looks if part in ("train", "rarer") else looks[-1:]:
        yield row(part, name, **about, step=step, loss_nats=loss)


def choose(kept: list[dict]) -> Iterator[dict]:
    """Train each way once with each rate, then with one beyond the better of them."""
    found: list[dict] = []
    with Cluster(ranks=2, magics=False) as cluster:
        for rate, (name, way) in product(RATES, WAYS.items()):
            for outer, momentum in OUTER if way.outer_rate else ((0.0, 0.0),):
                tried = replace(way, rate=rate, outer_rate=outer, momentum=momentum)
                for each in one(cluster, kept, "choose", name, tried, CHOOSING):
                    found.append(each)
                    yield each
        for name in WAYS:
            way = best(found, name)
            beyond = way.rate * 2 if way.rate == max(RATES) else way.rate / 2
            tried = replace(way, rate=beyond)
            yield from one(cluster, kept, "choose", name, tried, CHOOSING)


def best(rows: list[dict], name: str) -> Way:
    """Return a way with the rates that were best in the choice."""
    rows = [r for r in rows if (r["part"], r["way"]) == ("choose", name)]
    found = min(rows, key=lambda r: float(r["loss_nats"]))
    outer = {key: float(found[key] or 0) for key in ("outer_rate", "momentum")}
    return replace(WAYS[name], rate=float(found["rate"]), **outer)


def every(kept: list[dict]) -> Iterator[dict]:
    """Train DiLoCo and plain local steps with more and fewer local steps."""
    with Cluster(ranks=2, magics=False) as cluster:
        for count, name in product(EVERY, ("DiLoCo", "local steps")):
            way = replace(best(kept, name), every=count)
            yield from one(cluster, kept, "every", name, way, CHOOSING)


def trainings(kept: list[dict]) -> Iterator[dict]:
    """Train each way with its own rate and each seed."""
    with Cluster(ranks=2, magics=False) as cluster:
        for seed, name in product(SEEDS, WAYS):
            yield from one(cluster, kept, "train", name, best(kept, name), seed)


def longer(kept: list[dict]) -> Iterator[dict]:
    """Train DiLoCo and data parallel at the same rates for twice as many steps."""
    with Cluster(ranks=2, magics=False) as cluster:
        for seed, name in product(SEEDS, ("data parallel", "DiLoCo")):
            steps = 2 * slow_training.STEPS
            yield from one(cluster, kept, "longer", name, best(kept, name), seed, steps)


def larger(kept: list[dict]) -> Iterator[dict]:
    """Train with four times as many windows in a step, at the same rates."""
    with Cluster(ranks=2, magics=False) as cluster:
        for name in ("data parallel", "local steps", "DiLoCo"):
            windows = 4 * slow_training.WINDOWS
            yield from one(
                cluster, kept, "larger", name, best(kept, name), CHOOSING, windows=windows
            )


def rarer(kept: list[dict]) -> Iterator[dict]:
    """Train DiLoCo with most local steps and all seeds, and time its steps at 100 Mbit/s."""
    way, bits_per_s = replace(best(kept, "DiLoCo"), every=EVERY[-1]), LINKS[-1]
    with Cluster(ranks=2, magics=False) as cluster:
        for seed in SEEDS:
            yield from one(cluster, kept, "rarer", "DiLoCo", way, seed)
    with box.hosts(2, bits_per_s) as hosts, Cluster(hosts=hosts) as cluster:
        seconds, _ = cluster.run(slow_training.rounds, way, TURNS, None, way.every)[0]
    about = {"every": way.every, "mbit_per_s": round(bits_per_s / 1e6), "step": len(seconds)}
    yield row("rarer", "DiLoCo", **about, **quartiles(seconds))


def steps(kept: list[dict]) -> Iterator[dict]:
    """Time steps over a link without a limit, and over each link."""
    links, found = slow_links.links_of(measured.load("box")), {}
    with box.hosts(2, None) as hosts, Cluster(hosts=hosts) as cluster:
        compute_s = cluster.run(slow_training.computing)[0]
        jobs = {name: (name, 1, None) for name in WAYS} | {"waiting": ("streaming", 1, compute_s)}
        for _, bits_per_s in product(range(TURNS), (None, *LINKS)):
            hosts.rate(bits_per_s)
            for name, job in jobs.items():  # in turns: a disturbance hits all alike
                some, _ = cluster.run(slow_training.rounds, *job)[0]
                found.setdefault((name, bits_per_s), []).extend(some)
                print(name, bits_per_s, some, flush=True)
    found["computing", None] = [compute_s]
    for (name, bits_per_s), seconds in found.items():
        model_s = float(np.median(found[name, None]))
        if bits_per_s:
            way = "streaming" if name == "waiting" else name
            model_s = slow_training.predict(way, model_s, links[bits_per_s])
        about = {"mbit_per_s": round((bits_per_s or 0) / 1e6), "step": len(seconds)}
        yield row("steps", name, **about, **quartiles(seconds), model_ms=1e3 * model_s)


def whole(table: list[dict]) -> Iterator[dict]:
    """Train over a link of 100 Mbit/s from the first to the last step."""
    with box.hosts(2, LINKS[-1]) as hosts, Cluster(hosts=hosts) as cluster:
        for name in WHOLE:
            runs = cluster.run(train, best(table, name), SEEDS[0])
            at = np.max([np.cumsum(run.step_s) for run in runs], axis=0)
            wanted = {"part": "steps", "way": name, "mbit_per_s": round(LINKS[-1] / 1e6)}
            (step_ms,) = [float(r["ms"]) for r in table if wanted.items() <= r.items()]
            numbers = {"seed": SEEDS[0], "mbit_per_s": wanted["mbit_per_s"]}
            at[-1] += max(run.finish_s for run in runs)
            for step, loss in zip(runs[0].look_at, runs[0].loss_nats, strict=True):
                times = {"ms": 1e3 * float(at[step - 1]), "model_ms": step * step_ms}
                yield row("whole", name, **numbers, step=step, loss_nats=loss, **times)


PARTS = {
    "choose": choose, "every": every, "longer": longer, "larger": larger, "train": trainings,
    "rarer": rarer, "steps": steps, "whole": whole,
}  # fmt: skip


def main() -> None:
    """Measure some parts, and write the table row by row."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("parts", nargs="+", choices=PARTS)
    there = (data_folder() / "measured" / "slow_links_training.csv").exists()
    table = measured.load("slow_links_training").rows if there else []
    chosen = options.parse_args().parts
    for part in chosen:
        others, found = [r for r in table if r["part"] != part], []
        there = {part, *(r["part"] for r in others)}
        sys.argv[1:] = [each for each in PARTS if each in there]  # what makes the whole table
        for each in PARTS[part](table):
            found.append(each)
            left = [r for r in table if r["part"] == part and r not in found]
            left = [] if part in ("steps", "whole") else left
            measured.write("slow_links_training", others + found + left, (CHOOSING, *SEEDS))
        measured.write("slow_links_training", others + found, (CHOOSING, *SEEDS))
        table = measured.load("slow_links_training").rows


if __name__ == "__main__":
    main()
