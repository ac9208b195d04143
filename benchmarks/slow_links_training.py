"""Train a small GPT by several schemes to exchange less, and time its steps on a box (lesson 94).

    python benchmarks/slow_links_training.py choose     # learning rates
    python benchmarks/slow_links_training.py every      # other numbers of local steps
    python benchmarks/slow_links_training.py longer     # twice as many steps
    python benchmarks/slow_links_training.py larger     # four times the batch
    python benchmarks/slow_links_training.py train      # losses, in shared memory
    python benchmarks/slow_links_training.py steps      # times, on two hosts in a box
    python benchmarks/slow_links_training.py whole      # both at once, at 100 Mbit/s

A part writes its rows of `data/measured/slow_links_training.csv` one by one and keeps the others;
trainings in shared memory that are there already are not repeated, so a part may be interrupted.

- `choose`: every scheme with each of `RATES`, those with outer steps with each pair of `OUTER`;
  then the best with half or twice its rate, until rates on both sides of the best were tried.
  Seed 10 alone. The best are noted in `dlcourse.slow_training.SCHEMES`.
- `every`: two of them with fewer and more local steps, at the same rates, with seed 10.
- `longer`: DiLoCo and data parallel for twice as many steps, at the same rates, three other seeds.
- `larger`: three schemes with four times the batch, at the same rates, with seed 10.
- `train`: every scheme at its best rates with three other seeds: the held-out loss after every 32
  steps, and the bytes that a rank passes to collectives in a step. The link does not change them.
- `steps`: the time of a step (median and quartiles of rounds, one in each turn, of 16 steps or of
  all between two exchanges), over a link without a limit (0) and at three rates, in turns; as
  `model_ms` the prediction from the step without a limit, the bytes, and the links of `box.csv`.
  "waiting" is "streaming" where a rank waits for the time of its computing, with its core free.
- `whole`: trainings over the link from the first to the last step, the time until each evaluation,
  and as `model_ms` the number of steps times the time of a step.

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

from dlcourse import box, measured, slow_links, slow_training
from dlcourse.slow_training import SCHEMES, Run, Scheme
from dlguide.cluster import Cluster
from dlguide.files import data_folder

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

CHOOSING, SEEDS = 10, (0, 1, 2)
RATES = (0.001, 0.002)
# outer rates, each with a momentum; the third pair is that of the paper of DiLoCo
OUTER = ((0.3, 0.9), (0.7, 0.5), (0.7, 0.9), (1.0, 0.5))
EVERY = (4, 8, 64)
LINKS = (1e9, 3e8, 1e8)
TURNS = 6
WHOLE = ("data parallel", "DiLoCo", "streaming")
COLUMNS = (
    "part", "scheme", "every", "rate", "outer_rate", "momentum", "seed", "mbit_per_s", "step",
    "loss_nats", "ms", "low_ms", "high_ms", "model_ms", "nbytes_per_step",
)  # fmt: skip


def train(
    comm: Comm,
    scheme: str | Scheme,
    seed: int,
    steps: int = slow_training.STEPS,
    windows: int = slow_training.WINDOWS,
) -> Run:
    """Train on all ranks."""
    run = slow_training.train(comm, scheme, seed, steps, windows=windows)
    run.weights = None  # too many bytes to send back
    return run


def row(part: str, scheme: str, **values: Any) -> dict[str, Any]:
    """Return and print a row; what it does not have is empty."""
    own = {key: f"{v:.5g}" if isinstance(v, float) else v for key, v in values.items()}
    found = dict.fromkeys(COLUMNS, "") | {"part": part, "scheme": scheme} | own
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
    scheme: Scheme,
    seed: int,
    steps: int = slow_training.STEPS,
    windows: int = slow_training.WINDOWS,
) -> Iterator[dict]:
    """Yield the rows of one training, those that are kept or new ones."""
    outer = (scheme.outer_rate, scheme.momentum) if scheme.outer_rate else ("", "")
    about = {"every": scheme.every, "rate": scheme.rate, "outer_rate": outer[0]}
    about |= {"momentum": outer[1], "seed": seed}
    wanted = ({"part": part, "scheme": name} | about).items()
    there = [r for r in kept if wanted <= r.items()]
    if there:
        yield from there
        return
    run = cluster.run(train, scheme, seed, steps, windows)[0]
    about["nbytes_per_step"] = run.sent_nbytes // steps
    evaluations = list(zip(run.evaluated_at, run.loss_nats, strict=True))
    for step, loss in evaluations if part == "train" else evaluations[-1:]:
        yield row(part, name, **about, step=step, loss_nats=loss)


def choose(kept: list[dict]) -> Iterator[dict]:
    """Train each scheme once with each rate, then with others until the best is between them."""
    found: list[dict] = []
    with Cluster(ranks=2, magics=False) as cluster:
        for rate, (name, scheme) in product(RATES, SCHEMES.items()):
            for outer, momentum in OUTER if scheme.outer_rate else ((0.0, 0.0),):
                tried = replace(scheme, rate=rate, outer_rate=outer, momentum=momentum)
                for each in one(cluster, kept, "choose", name, tried, CHOOSING):
                    found.append(each)
                    yield each
        for name in SCHEMES:
            while rate := beyond(found, name):
                tried = replace(best(found, name), rate=rate)
                for each in one(cluster, kept, "choose", name, tried, CHOOSING):
                    found.append(each)
                    yield each


def best(rows: list[dict], name: str) -> Scheme:
    """Return a scheme with the rates that were best in the choice."""
    rows = [r for r in rows if (r["part"], r["scheme"]) == ("choose", name)]
    found = min(rows, key=lambda r: float(r["loss_nats"]))
    outer = {key: float(found[key] or 0) for key in ("outer_rate", "momentum")}
    return replace(SCHEMES[name], rate=float(found["rate"]), **outer)


def beyond(rows: list[dict], name: str) -> float | None:
    """Return half or twice the best rate of a scheme if it is at the edge of those tried."""
    rates = {float(r["rate"]) for r in rows if r["scheme"] == name}
    rate = best(rows, name).rate
    return {min(rates): rate / 2, max(rates): rate * 2}.get(rate)


def every(kept: list[dict]) -> Iterator[dict]:
    """Train DiLoCo and plain local steps with more and fewer local steps."""
    with Cluster(ranks=2, magics=False) as cluster:
        for count, name in product(EVERY, ("DiLoCo", "local steps")):
            scheme = replace(best(kept, name), every=count)
            yield from one(cluster, kept, "every", name, scheme, CHOOSING)


def trainings(kept: list[dict]) -> Iterator[dict]:
    """Train each scheme with its own rate and each seed."""
    with Cluster(ranks=2, magics=False) as cluster:
        for seed, name in product(SEEDS, SCHEMES):
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


def steps(kept: list[dict]) -> Iterator[dict]:
    """Time steps over a link without a limit, and over each link."""
    links, found = slow_links.links_of(measured.load("box")), {}
    with box.hosts(2, None) as hosts, Cluster(allocation=hosts.allocation()) as cluster:
        compute_s = cluster.run(slow_training.computing)[0]
        jobs = {
            name: (name, 1, None, max(slow_training.EVERY, scheme.every))
            for name, scheme in SCHEMES.items()
        } | {"waiting": ("streaming", 1, compute_s)}
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
            scheme = "streaming" if name == "waiting" else name
            model_s = slow_training.predict(scheme, model_s, links[bits_per_s])
        about = {"mbit_per_s": round((bits_per_s or 0) / 1e6), "step": len(seconds)}
        yield row("steps", name, **about, **quartiles(seconds), model_ms=1e3 * model_s)


def whole(table: list[dict]) -> Iterator[dict]:
    """Train over a link of 100 Mbit/s from the first to the last step."""
    with box.hosts(2, LINKS[-1]) as hosts, Cluster(allocation=hosts.allocation()) as cluster:
        for name in WHOLE:
            runs = cluster.run(train, best(table, name), SEEDS[0])
            at = np.max([np.cumsum(run.step_s) for run in runs], axis=0)
            wanted = {"part": "steps", "scheme": name, "mbit_per_s": round(LINKS[-1] / 1e6)}
            (step_ms,) = [float(r["ms"]) for r in table if wanted.items() <= r.items()]
            numbers = {"seed": SEEDS[0], "mbit_per_s": wanted["mbit_per_s"]}
            at[-1] += max(run.finish_s for run in runs)
            for step, loss in zip(runs[0].evaluated_at, runs[0].loss_nats, strict=True):
                times = {"ms": 1e3 * float(at[step - 1]), "model_ms": step * step_ms}
                yield row("whole", name, **numbers, step=step, loss_nats=loss, **times)


PARTS = {
    "choose": choose, "every": every, "longer": longer, "larger": larger, "train": trainings,
    "steps": steps, "whole": whole,
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
