"""Run the benchmarks that measure what the project promises, and write `docs/benchmarks.md`.

    make benchmarks                                # about three quarters of an hour
    make benchmarks ONLY="kmeans packed_reading"   # these again; the rows of the others stay

Each benchmark is a script of this folder that calls `report`. One that fails, or that this machine
cannot run, has a row that says so. The exit status is 1 if any failed, 3 if none failed and a
promise was missed, otherwise 0. Rows of another machine are dropped. Nothing else should run
meanwhile.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from report import MISSED, ROWS

from dlcourse import measured
from dlguide import commands, machine
from dlguide.cluster.environment import find_mpiexec
from dlguide.files import atomic_write, data_folder

FOLDER = Path(__file__).resolve().parent
PAGE = FOLDER.parent / "docs" / "benchmarks.md"
LIMIT_S = 590
FAILED_STATUS, MISSED_STATUS = 1, 3  # 2 is that of a wrong argument
HEAD = """# Benchmarks

What the project promises, as `make benchmarks` measured it on {machine}. Each row is the median of
repeated measurements with its quartiles; what is compared took turns on the same work, and where
two programs must give equal results, that was checked first. The **spread** is the distance of the
quartiles as a share of the median, the largest of the ratio's and of the times that it was made
from: how much the machine moved. A promise is **kept** or **missed** where both quartiles are on
the same side of it, otherwise the measurement is unclear. The **share of the limit**
compares with what this machine allows at most; each script says how that is measured.

| benchmark | what | median (quartiles) | promised | verdict | share of the limit | spread | day |
|---|---|---|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Benchmark:
    """How a script is called, and what it needs; `ranks` are started by mpiexec."""

    arguments: tuple[object, ...] = ()
    ranks: int = 1
    cores: int = 2
    needs: str = ""


BENCHMARKS = {
    "fit_against_hand_written": Benchmark(ranks=2),
    "two_ranks_against_one": Benchmark(),
    "step_prediction": Benchmark(),
    "horovod_against_ddp": Benchmark(needs="torch"),
    "pipeline_feeds_mnist": Benchmark(ranks=2),
    "packed_reading": Benchmark(cores=1),
    "kmeans": Benchmark(),
    "auto_allreduce": Benchmark(),
    "overlap_by_way": Benchmark(),
    "exchanges": Benchmark(),
    "pipeline_bubble": Benchmark(),
    "layouts": Benchmark(("--no-write",)),
    "tuner_against_grid": Benchmark(),
    "checkpoint_kills": Benchmark(("--times", 0), cores=1),
    "roofline_against_stream": Benchmark(cores=1),
    "memory_against_measured": Benchmark(cores=1),
    "prediction_intervals": Benchmark(cores=1),
}


def run(name: str, benchmark: Benchmark, folder: Path, limit_s: float = LIMIT_S) -> list[dict]:
    """Run one script and return its rows; one row without a value if there is none."""
    cores = machine.describe().usable_cores
    if cores < benchmark.cores:
        return [_nothing(name, f"not measured: needs {benchmark.cores} cores, there is {cores}")]
    if benchmark.needs and not importlib.util.find_spec(benchmark.needs):
        return [_nothing(name, f"not measured: {benchmark.needs} is not installed")]
    command = [sys.executable, folder / f"{name}.py", *benchmark.arguments]
    env = dict(os.environ)
    if benchmark.ranks > 1:
        ranks = benchmark.ranks
        plan = machine.threads.plan(machine.describe(), ranks)
        command = [find_mpiexec(), "-n", ranks, sys.executable, "-m", "mpi4py", *command[1:]]
        env |= plan.environment(0)
    with tempfile.TemporaryDirectory() as place:
        found = Path(place) / "rows"
        found.touch()
        seen = [0]

        def show(output: str) -> None:
            print(output[seen[0] :], end="", flush=True)
            seen[0] = len(output)

        done = commands.run(command, limit_s, env | {ROWS: str(found)}, on_wait=show)
        show(done.output)
        rows = [{"benchmark": name} | json.loads(line) for line in found.read_text().splitlines()]
    if not done.ok:
        last = done.tail(1).replace(f"{FOLDER.parent}/", "")
        how = f"did not end in {limit_s:.0f} s" if done.status is None else last
        rows.append(_nothing(name, f"failed: {how}"))
    return [row | {"day": date.today().isoformat()} for row in rows or [_nothing(name, "failed")]]


def _nothing(name: str, verdict: str) -> dict:
    empty = dict.fromkeys(("what", "value", "low", "high", "spread", "share", "promised"), "")
    return {"benchmark": name} | empty | {"verdict": verdict, "day": date.today().isoformat()}


def page(rows: Iterable[dict], where: str) -> str:
    """Return the page with a line for each row."""
    lines = []
    for row in rows:
        value = spread = ""
        if row["value"] != "":
            value = "{value:.3g} ({low:.3g} to {high:.3g})".format(**row)
            spread = f"{row['spread']:.0%}"
        verdict = str(row["verdict"]).replace("|", "/")[:200]
        cells = [f"`{row['benchmark']}`", row["what"], value, row["promised"], verdict]
        lines.append(" | ".join(map(str, [*cells, row["share"], spread, row["day"]])))
    return HEAD.format(machine=where) + "".join(f"| {line} |\n" for line in lines)


def main(arguments: list[str] | None = None) -> int:
    """Run the chosen ones, write the table after each, and return the exit status."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}")
    chosen = options.parse_args(arguments).names or list(BENCHMARKS)
    if unknown := set(chosen) - set(BENCHMARKS):
        options.error(f"no benchmark {', '.join(sorted(unknown))}; there are {list(BENCHMARKS)}")
    here, rows = machine.describe(), []
    if (data_folder() / "measured" / "benchmarks.csv").exists():
        before = measured.load("benchmarks")
        if before.about["machine"] == f"{here.processor}, {here.physical_cores} cores":
            rows = [row for row in before.rows if row["benchmark"] in BENCHMARKS]
    tests = "".join(PAGE.read_text().partition("\n## Tests")[1:]) if PAGE.exists() else ""
    verdicts = []
    for name in chosen:
        print(f"--- {name}", flush=True)
        new = run(name, BENCHMARKS[name], FOLDER)
        verdicts += [str(row["verdict"]) for row in new]
        rows = [row for row in rows if row["benchmark"] != name] + new
        rows.sort(key=lambda row: list(BENCHMARKS).index(row["benchmark"]))
        measured.write("benchmarks", rows, seeds=[0])
        with atomic_write(PAGE) as file:
            file.write(page(rows, measured.load("benchmarks").about["machine"]) + tests)
    print(f"{PAGE}: {len(rows)} rows", flush=True)
    if any(each.startswith("failed") for each in verdicts):
        return FAILED_STATUS
    return MISSED_STATUS if MISSED in verdicts else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # ends the script, too
    sys.exit(main())
