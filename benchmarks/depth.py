"""Measure ResNet-56 with and without its shortcuts, and write `data/measured/depth.csv`.

    python benchmarks/depth.py
    python benchmarks/depth.py rates

2000 small digits, 4 epochs in batches of 50, Adam with a rate that falls along a cosine, as in
lesson 11; ResNet-20 beside it. Some 4 minutes on 2 quiet cores. Columns: network, shortcuts (1 or
0), seed, epoch, mean training loss, test accuracy on 500 digits (share). With `rates`: ResNet-56
without shortcuts at two other rates, one seed, into `data/measured/depth_rates.csv`.
"""

from __future__ import annotations

import sys
from typing import Any

from dlcourse import measured, taken_apart
from dlguide import models, training
from dlguide.data import datasets

SEEDS, EPOCHS, SAMPLES, BATCH = range(3), 4, 2_000, 50
RATE, OTHER_RATES = 3e-3, (1e-3, 1e-2)


def train(name: str, shortcuts: bool, seed: int, rate: float = RATE) -> list[dict[str, Any]]:
    """Train one network and return a row per epoch."""
    import keras

    digits = datasets.load().first(SAMPLES, 500)
    small = datasets.Dataset(
        "small digits",
        taken_apart.half_size(digits.train_images), digits.train_labels,
        taken_apart.half_size(digits.test_images), digits.test_labels,
    )  # fmt: skip
    net = models.build(name, seed, image=16)
    net = net if shortcuts else taken_apart.without(net, "Add")

    def network() -> Any:
        return net

    def falling_rate() -> Any:
        steps = EPOCHS * SAMPLES // BATCH
        return keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(rate, steps))

    run = training.fit(
        network, small, epochs=EPOCHS, batch_per_rank=BATCH, optimizer=falling_rate,
        config=training.FitConfig(seed=seed), on_result=None,
    )  # fmt: skip
    return [
        {"network": name, "shortcuts": int(shortcuts), "seed": seed, "epoch": epoch,
         "loss": round(loss, 4), "accuracy": round(accuracy, 4)}
        for epoch, (loss, accuracy) in enumerate(zip(run.loss, run.test_accuracy, strict=True), 1)
    ]  # fmt: skip


def main() -> None:
    """Make all trainings and write the table."""
    rows = []
    if sys.argv[1:] == ["rates"]:
        for rate in OTHER_RATES:
            rows += [{"rate": rate} | row for row in train("resnet56", False, 0, rate)]
        print(measured.write("depth_rates", rows, [0]))
        return
    for seed in SEEDS:
        for name in ("resnet20", "resnet56"):
            for shortcuts in (True, False):
                rows += train(name, shortcuts, seed)
                print(rows[-1], flush=True)
    print(measured.write("depth", rows, SEEDS))


if __name__ == "__main__":
    main()
