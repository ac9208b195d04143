"""Train the small GPTs of lesson 90: losses against size and data, steps against the batch.

    python benchmarks/language_models.py sizes [--seconds 240]
    python benchmarks/language_models.py batches [--seconds 240]

One training per core. After `--seconds` no further training begins; call again, and rows that are
in the table are not trained again. The losses and steps do not depend on the speed of the machine.

`sizes` writes `data/measured/language_sizes.csv`: part (choice: one seed, several rates; result:
other seeds at the best rate; largest: at the rate that the smaller nets lead to), width,
parameters that each token is multiplied by, tokens, rate, seed, held-out loss (nats per token).
`batches` writes `data/measured/language_batches.csv`: batch (sequences), rate, seed, steps to the
target, 0 where it was not reached.
"""

from __future__ import annotations

import argparse
import os
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from functools import cache
from multiprocessing import get_context
from time import perf_counter

from dlcourse import language_models, measured
from dlguide.files import data_folder

CHOOSING, SEEDS = 10, (0, 1)
BATCH = 16  # sequences, of the trainings of `sizes`
WIDTHS, LARGEST = (16, 24, 32, 48, 64), 128
TOKENS = tuple(language_models.LENGTH * windows for windows in (4_608, 9_216, 18_432))
RATES = (0.004, 0.008, 0.016, 0.032)
BATCH_WIDTH, TARGET = 32, 2.2  # nats per token
BATCHES = (2, 4, 8, 16, 32, 64, 128, 256)
MOST_WINDOWS, MOST_STEPS = 6_000, 200  # a training ends after windows / batch + steps


@cache
def text() -> language_models.Text:
    """The text, once in each process."""
    return language_models.Text.load()


@cache
def net(width: int, seed: int) -> language_models.FlatGPT:
    """A net, built and traced once in each process."""
    return language_models.FlatGPT(language_models.shape(text(), width), seed)


def train(job: dict) -> dict:
    """Train once to the end of its data."""
    gpt = net(job["width"], job["seed"])
    windows = job["tokens"] // language_models.LENGTH
    run = language_models.train(gpt, text(), windows, BATCH, job["rate"], job["seed"])
    return job | {"held_out_nats": round(run.held_out_nats, 5)}


def steps(job: dict) -> dict:
    """Train to the target."""
    gpt = net(BATCH_WIDTH, job["seed"])
    most = round(MOST_WINDOWS / job["batch"]) + MOST_STEPS
    found = language_models.steps_to(
        gpt, text(), TARGET, job["batch"], job["rate"], job["seed"], most
    )
    return job | {"steps": 0 if found is None else round(found, 2)}


def run_all(table: str, jobs: list[dict], work, pool: ProcessPoolExecutor, end: float) -> list:
    """Return the rows of these jobs: those that are kept, and new ones until the time is up."""
    path = data_folder() / "measured" / f"{table}.csv"
    rows = measured.load(table).rows if path.exists() else []
    is_in = lambda job: any(job.items() <= row.items() for row in rows)  # noqa: E731
    left, running = [job for job in jobs if not is_in(job)], set()
    while left or running:
        while left and len(running) < 2 and perf_counter() < end:
            running.add(pool.submit(work, left.pop(0)))
        if not running:
            break
        done, running = wait(running, return_when=FIRST_COMPLETED)
        for each in done:
            rows.append(each.result())
            print(*rows[-1].values(), flush=True)
            measured.write(table, rows, (CHOOSING, *SEEDS))
    return [row for row in rows if any(job.items() <= row.items() for job in jobs)]


def sizes(pool: ProcessPoolExecutor, end: float) -> None:
    """Choose the rates of the small nets, train these, and the largest at the rate of the line."""
    run = lambda jobs: run_all("language_sizes", jobs, train, pool, end)  # noqa: E731
    widths = sorted(WIDTHS, reverse=True)
    choice = lambda rates: [  # noqa: E731
        job("choice", width, TOKENS[0], rate, CHOOSING) for width in widths for rate in rates[width]
    ]
    rates = {width: RATES for width in widths}
    rows = run(choice(rates))
    for width in widths:  # where the best rate is the first or last one, one more
        best = min(
            (row for row in rows if row["width"] == width), key=lambda row: row["held_out_nats"]
        )["rate"]
        more = {RATES[0]: RATES[0] / 2, RATES[-1]: 2 * RATES[-1]}.get(best)
        rates[width] += (more,) if more else ()
    rows = run(choice(rates))
    if len(rows) < sum(map(len, rates.values())):
        return
    line = language_models.rate_line(rows)
    run(
        [
            job("result", width, tokens, line(width), seed)
            for seed in SEEDS
            for tokens in TOKENS[::-1]
            for width in widths
        ]
        + [job("largest", LARGEST, tokens, line(LARGEST), 0) for tokens in TOKENS[::-1]]
    )


def job(part: str, width: int, tokens: int, rate: float, seed: int) -> dict:
    """A training of `sizes`; the columns of its row."""
    multiplied = language_models.shape(text(), width).multiplied
    return {
        "part": part, "width": width, "multiplied": multiplied, "tokens": tokens, "rate": rate,
        "seed": seed,
    }  # fmt: skip


def batches(pool: ProcessPoolExecutor, end: float) -> None:
    """Each batch at several rates around the root of the batch, then other seeds at the best."""
    run = lambda jobs: run_all("language_batches", jobs, steps, pool, end)  # noqa: E731
    first = [{"batch": b, "rate": r, "seed": CHOOSING} for b in BATCHES[::-1] for r in rates_of(b)]
    rows = [row for row in run(first) if row["steps"]]
    best = {}
    for batch in BATCHES:
        found = [row for row in rows if row["batch"] == batch]
        if not found or len(rows) == 0:
            return
        best[batch] = min(found, key=lambda row: row["steps"])["rate"]
    run([{"batch": b, "rate": r, "seed": s} for s in SEEDS for b, r in best.items()])


def rates_of(batch: int) -> tuple[float, ...]:
    """Rates to try with a batch."""
    middle = {2: 0.004, 4: 0.008, 8: 0.008, 16: 0.016, 32: 0.016}.get(batch, 0.032)
    return middle / 2, middle, 2 * middle


def main() -> None:
    """Train, and write the tables."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("part", choices=("sizes", "batches"))
    options.add_argument("--seconds", type=float, default=240.0, help="no training begins later")
    chosen = options.parse_args()
    os.environ |= {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    end = perf_counter() + chosen.seconds
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        {"sizes": sizes, "batches": batches}[chosen.part](pool, end)


if __name__ == "__main__":
    main()
