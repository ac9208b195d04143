"""Run: what a training tells about itself, in plain numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np

from dlguide.errors import require, require_known

# The first step traces and compiles; a few more fill caches and wake threads.
WARMUP_STEPS = 5


@dataclass(frozen=True)
class Run:
    """One training as one rank saw it; goes to records as JSON.

    What was asked for:
        rank (index), ranks (count), threads of this rank (count), model, data, device, epochs,
        batch_per_rank (images per step), global_batch (images per step over all ranks),
        optimizer, learning_rate (as used, after scaling; the highest of a schedule),
        rate_scaling, seed, virtual_workers (of each rank, count).

    What it was about:
        parameters (trainable weights, count), samples (training images an epoch, all ranks),
        steps_per_epoch, first_epoch (epochs that a checkpoint had done before this run).

    What came out, one number for each epoch trained here (one that was gone on with counts
    whole, the steps before it included):
        loss and train_accuracy (mean over all samples of all ranks and share of them that was
        predicted correctly, each with the weights before its step), test_accuracy (fraction of
        the whole test set; a run that found nothing left to train has one, of the weights
        it found; empty without evaluation); train_metrics and test_metrics (the same of every
        metric, by name), earlier_loss (of the epochs that a checkpoint had done).

    What it took, in seconds:
        step_s (every step of this run, none dropped, waiting for data and ranks included),
        wait_s (for each step, its part spent waiting for data), first_step_s (the first of
        step_s: tracing, first connections), setup_s (imports, data, net, broadcast),
        train_s, evaluate_s, checkpoint_s, total_s (all of the call).

    Throughput, over all ranks:
        images_per_s (steady state, see `steady_images_per_s`: compare and scale this one),
        images_per_s_with_first (images trained / sum of step_s: the first step weighs in,
        and may by itself reverse a comparison of two systems).

    And: weights_digest (SHA-256 of the trainable weights' bytes; equal on all ranks),
    started_unix_s (clock at the start), phases (name, start_s, end_s after the start: setup,
    train, evaluate, checkpoint), versions (name -> version), compression (of gradients),
    sent_nbytes (gradients' bytes that this rank handed to the exchange in this run),
    step_start_s (begin of every step, after the start, s; empty where nobody noted it).
    """

    rank: int
    ranks: int
    threads: int
    model: str
    data: str
    device: str
    epochs: int
    batch_per_rank: int
    global_batch: int
    optimizer: str
    learning_rate: float
    seed: int
    parameters: int
    samples: int
    steps_per_epoch: int
    first_epoch: int
    loss: tuple[float, ...]
    test_accuracy: tuple[float, ...]
    step_s: tuple[float, ...]
    wait_s: tuple[float, ...]
    first_step_s: float
    setup_s: float
    train_s: float
    evaluate_s: float
    checkpoint_s: float
    total_s: float
    images_per_s: float
    images_per_s_with_first: float
    weights_digest: str
    started_unix_s: float = 0.0
    phases: tuple[tuple[str, float, float], ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    compression: str = "none"
    sent_nbytes: int = 0
    step_start_s: tuple[float, ...] = ()
    virtual_workers: int = 1
    train_accuracy: tuple[float, ...] = ()
    rate_scaling: str = "none"
    earlier_loss: tuple[float, ...] = ()
    train_metrics: dict[str, tuple[float, ...]] = field(default_factory=dict)
    test_metrics: dict[str, tuple[float, ...]] = field(default_factory=dict)

    def __str__(self) -> str:
        scaling = "not scaled" if self.rate_scaling == "none" else f"{self.rate_scaling} scaling"
        accuracy = f", test accuracy {self.test_accuracy[-1]:.2%}" if self.test_accuracy else ""
        return (
            f"rank {self.rank} of {self.ranks}: {self.model} on {self.data}, "
            f"{self.epochs} epoch{'s' * (self.epochs != 1)}, learning rate "
            f"{self.learning_rate:g} ({scaling}), "
            f"{self.images_per_s:.0f} images/s{accuracy}, {self.total_s:.1f} s"
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers for a record; `from_dict` reads them back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> Run:
        """Read a Run back from what `as_dict` wrote, also after a journey through JSON."""
        known = [one.name for one in fields(cls)]
        for name in record:
            require_known(name, known, "record")
        missing = [name for name in known[: known.index("started_unix_s")] if name not in record]
        require(not missing, "record", "have every field of a Run", f"none named {missing}")
        values = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in record.items()
        }
        values["phases"] = tuple(tuple(phase) for phase in values.get("phases", ()))
        for name in ("train_metrics", "test_metrics"):
            found = values.get(name, {})
            values[name] = {metric: tuple(each) for metric, each in found.items()}
        return cls(**values)


def steady_images_per_s(
    step_s: Sequence[float], step_images: Sequence[int], warmup: int = WARMUP_STEPS
) -> float:
    """Give the throughput of the steady state: images of a full step over its median time.

    Only full steps count (those of the most images), and of these only the ones after the
    first `warmup` steps of the run; where a run is shorter than twice that, its first half is
    the warm-up. The mean over all steps, the slow first one inside, answers another question:
    what the whole job takes.

    Args:
        step_s: time of every step of the run, in order (s).
        step_images: images of each of these steps, over all ranks (count).
        warmup: steps at the beginning that do not count (count).

    Returns:
        float: images per second over all ranks; 0.0 when no step was made.

    >>> steady_images_per_s([5.0, 0.1, 0.1, 0.02], [100, 100, 100, 20], warmup=1)
    1000.0
    """
    if not len(step_s):
        return 0.0
    first = min(warmup, len(step_s) // 2)
    full = max(step_images)
    steady = [
        seconds
        for seconds, images in zip(step_s[first:], step_images[first:], strict=True)
        if images == full
    ]
    # A run of two steps whose second is the short one has only its first to go by.
    steady = steady or [s for s, images in zip(step_s, step_images, strict=True) if images == full]
    return full / float(np.median(steady))
