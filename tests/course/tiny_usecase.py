"""A use case of seconds, with all that the command expects of one."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from dlcourse.bench.scaling import step_of
from dlcourse.usecases.report import Finding
from dlcourse.usecases.run import Option
from dlguide import training
from dlguide.errors import require


@dataclass(frozen=True)
class Outcome:
    """What a rank returns."""

    ranks: int
    losses: tuple[float, ...]
    digest: str
    first_epoch: int
    real: str | None

    def summary(self):
        """Say how it ended."""
        return f"tiny: loss {self.losses[-1] if self.losses else float('nan'):.3f}"


OPTIONS = {
    "epochs": Option(1, int),
    "samples": Option(200, int),
    "device": Option("cpu", str),
    "ranks": Option(None, int),
}


def check(real=None, epochs=1, samples=200, device="cpu"):
    """Refuse a folder without the file, as `train` does."""
    path = None if real is None else Path(real) / "tiny.txt"
    require(path is None or path.is_file(), "real", "hold tiny.txt", str(real), "Get it again.")
    require(epochs > 0, "epochs", "be at least 1", epochs)


def train(
    real=None, seed=0, checkpoint=None, report=None, epochs=1, samples=200, device="cpu",
    ranks=None,
):  # fmt: skip
    """Train a small net on a few digits."""
    check(real, epochs)
    run = training.fit(**arguments(seed, checkpoint, epochs, samples, device), on_result=report)
    return Outcome(run.ranks, run.loss, run.weights_digest, run.first_epoch, real)


def arguments(seed, checkpoint, epochs, samples, device):
    """What `fit` gets."""
    config = training.FitConfig(samples=samples, seed=seed, evaluate=False, device=device)
    return {"model": "mlp", "data": "mnist", "epochs": epochs, "batch_per_rank": 20,
            "checkpoint": checkpoint, "config": config}  # fmt: skip


def rehearse(work, real=None, seed=0, epochs=1, samples=200, device="cpu", ranks=None):
    """Do a little of `train`."""
    work.fit("digits", **arguments(seed, work.folder / "c", epochs, samples, device))


def write(outcomes, folder):
    """Write the numbers."""
    path = Path(folder) / "outcome.json"
    path.write_text(json.dumps([asdict(each) for each in outcomes]))
    return (path,)


def findings(outcomes, speedup=None):
    """Compare with a guide that says nothing."""
    ours = f"{len(outcomes)} ranks"
    ours += "" if speedup is None else f", {speedup.speedup:.2f} times"
    return [Finding("speed-up", "2.8 times", "guide 6.1", ours, "another machine")]


def step(batch=8, seed=0, samples=None):
    """Give the step of the same net."""
    return step_of("mlp", batch, seed)
