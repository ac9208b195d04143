"""Find the usual mistakes of parallel training, while it runs or afterwards.

recorder = audit.Recorder(hvd.rank(), hvd.size(), dataset=images, rate_of_one_rank=0.1)
model.fit(recorder.watch(batches), callbacks=[..., recorder.callback()])
print(audit.report(audit.gather(recorder, MPI.COMM_WORLD)))
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dlguide.errors import require
from dlguide.training.audit import checks
from dlguide.training.audit.checks import Finding
from dlguide.training.audit.record import Call, Evidence, Metric, Recorder, Seed

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

    from dlguide.measure import Run

__all__ = [
    "KINDS",
    "Evidence",
    "Finding",
    "Recorder",
    "examine",
    "gather",
    "looked_at",
    "of_runs",
    "read",
    "report",
]

# What is looked at -> whether a rank's evidence allows it, and the check.
_CHECKS: dict[str, tuple[Callable[[Evidence], object], Callable]] = {
    "weights after the broadcast and at the end": (
        lambda one: one.first_weights or one.last_weights,
        checks.weights,
    ),
    "shards of the data": (lambda one: any(one.seen), checks.shards),
    "steps of each rank": (lambda one: one.steps, checks.steps),
    "size of the last batch": (lambda one: any(one.batches), checks.last_batch),
    "learning rate": (lambda one: one.learning_rate is not None, checks.rate),
    "seeds": (lambda one: one.seeds, checks.seeds),
    "batch normalisation": (lambda one: one.statistics, checks.statistics),
    "metrics": (lambda one: one.metrics, checks.metrics),
    "throughput": (lambda one: one.images_per_s is not None, checks.first_step),
    "checkpoints": (lambda one: one.checkpoints, checks.checkpoints),
    "collectives": (lambda one: one.calls, checks.collectives),
}
KINDS = (
    *("no broadcast", "weights differ", "same order", "overlap", "missed", "steps", "last batch"),
    *("learning rate", "seeds", "batch normalisation", "metrics", "first step", "checkpoints"),
    "collectives",
)


def examine(everyone: Sequence[Evidence]) -> tuple[Finding, ...]:
    """Find mistakes in the evidence of all ranks; what was not recorded is not checked.

    A mistake that follows from another one is not reported too: weights that differ at the end
    after a missing broadcast, shards that overlap because all ranks see the same order.

    Args:
        everyone: one Evidence of each rank, in any order.

    Returns:
        tuple: the mistakes; empty if there are none, see `looked_at`.

    Raises:
        ValueError: if the evidence is not of each rank of one training once.
    """
    ordered = _whole(everyone)
    return tuple(
        finding
        for allows, check in _CHECKS.values()
        if any(allows(one) for one in ordered)
        for finding in check(ordered)
    )


def looked_at(everyone: Sequence[Evidence]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """List what the evidence allows to check, and what not.

    Args:
        everyone: one Evidence of each rank.

    Returns:
        tuple: names of what was checked, and of what no rank recorded.
    """
    seen = [name for name, (allows, _) in _CHECKS.items() if any(allows(one) for one in everyone)]
    return tuple(seen), tuple(name for name in _CHECKS if name not in seen)


def report(everyone: Sequence[Evidence]) -> str:
    """Report the mistakes, and what was checked.

    Args:
        everyone: one Evidence of each rank.

    Returns:
        str: three lines for each mistake, then what was checked and what not.

    Raises:
        ValueError: as `examine`.
    """
    found = examine(everyone)
    seen, unseen = looked_at(everyone)
    lines = [str(finding) for finding in found]
    if not found:
        lines = [f"Nothing found on {len(everyone)} rank{'s' * (len(everyone) != 1)}."]
    lines.append(f"Looked at: {', '.join(seen) or 'nothing'}.")
    if unseen:
        lines.append(f"Not recorded by any rank: {', '.join(unseen)}.")
    return "\n".join(lines)


def gather(recorder: Recorder, comm: Comm) -> tuple[Evidence, ...]:
    """Collect the evidence of all ranks on all ranks; collective.

    Moves the ids of the samples seen, about 11 bytes each, from every rank to every other.

    Args:
        recorder: of this rank.
        comm: the ranks; all must call.

    Returns:
        tuple: one Evidence for each rank, in rank order, the same on all ranks.

    Raises:
        ValueError: on all ranks alike, if a recorder was made for another rank.
    """
    texts = comm.allgather(recorder.evidence().to_json())
    everyone = [Evidence.from_json(text) for text in texts]
    return tuple(_whole(everyone))


def read(folder: str | os.PathLike) -> tuple[Evidence, ...]:
    """Read what recorders with a `folder` wrote there, also on ranks that were killed.

    A rank that did not reach `Recorder.write` gives its collectives only.

    Args:
        folder: as given to the recorders, seen by all of them.

    Returns:
        tuple: one Evidence for each rank, in rank order.

    Raises:
        ValueError: if a rank wrote nothing there.
    """
    everyone = []
    for path in Path(folder).glob("rank*.calls"):
        whole = path.with_suffix(".json")
        if whole.exists():
            everyone.append(Evidence.from_json(whole.read_text()))
            continue
        # A rank that was killed while it wrote leaves half a line.
        lines = path.read_text().rpartition("\n")[0].split("\n")
        calls = [json.loads(line) for line in lines[1:]]
        everyone.append(
            Evidence(
                rank=int(path.stem.removeprefix("rank")),
                ranks=int(lines[0]),
                calls=tuple(Call(c["name"], tuple(c["shape"]), c["dtype"]) for c in calls),
            )
        )
    return tuple(_whole(everyone))


def of_runs(
    runs: Sequence[Run], rate_of_one_rank: float | None = None, rate_rule: str = ""
) -> tuple[Evidence, ...]:
    """Take the evidence from the Runs of a finished training.

    A Run holds the digest of the last weights, steps, rate, seed and metrics of its rank, not
    the samples nor the first weights.

    Args:
        runs: one Run for each rank.
        rate_of_one_rank: the learning rate that one rank would use; None if unknown.
        rate_rule: as in `Recorder`.

    Returns:
        tuple: for `examine` and `report`.

    Raises:
        ValueError: if the Runs are not of each rank of one training once.
    """
    everyone = [
        Evidence(
            rank=run.rank,
            ranks=run.ranks,
            last_weights=run.weights_digest,
            batches=_batches(run),
            steps=tuple(len(epoch) for epoch in _batches(run)),
            learning_rate=run.learning_rate,
            rate_of_one_rank=rate_of_one_rank,
            rate_rule=rate_rule,
            optimizer=run.optimizer.lower(),
            seeds=(Seed("the training", run.seed, differs=False),),
            metrics=tuple(
                Metric(name, values[-1], 0, None)
                for name, values in (("loss", run.loss), ("test_accuracy", run.test_accuracy))
                if values
            ),
        )
        for run in runs
    ]
    return tuple(_whole(everyone))


def _batches(run: Run) -> tuple[tuple[int, ...], ...]:
    """Cut the steps that a Run made into epochs; a rank has its share of the last step."""
    each = max(run.steps_per_epoch, 1)
    rest = run.samples - (each - 1) * run.global_batch
    share = rest // run.ranks + (run.rank < rest % run.ranks)
    last = share if 0 < rest < run.global_batch else run.batch_per_rank
    sizes = [
        last if step % each == each - 1 else run.batch_per_rank for step in range(len(run.step_s))
    ]
    return tuple(tuple(sizes[at : at + each]) for at in range(0, len(sizes), each))


def _whole(everyone: Sequence[Evidence]) -> list[Evidence]:
    ordered = sorted(everyone, key=lambda one: one.rank)
    require(bool(ordered), "everyone", "hold the evidence of every rank", ())
    found, ranks = [one.rank for one in ordered], sorted({one.ranks for one in ordered})
    require(
        len(ranks) == 1 and found == list(range(ranks[0])),
        "everyone",
        f"hold each of the {' or '.join(map(str, ranks))} ranks of one training once",
        found,
        "Record on every rank, with its own rank and the same number of ranks.",
    )
    return ordered
