"""Steps of a pipeline measured again and again, and a net whose two halves take equally long."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dlguide.errors import require, require_count
from dlguide.parallel.pipeline import Pipeline, Step
from dlguide.parallel.schedules import BACKWARD, FORWARD

if TYPE_CHECKING:
    import keras


def deep_mlp(
    width: int = 768, blocks: int = 6, seed: int = 0, dtype: str = "float32"
) -> keras.Model:
    """Build a net of equal dense layers, for images of 28 x 28 x 1 and 10 classes.

    The images shrink to 4 x 4 pixels first, so that the first layer is about as small as the last
    one; any even number of blocks makes two stages of equal work.
    """
    import keras

    require_count(width, "width")
    require_count(blocks, "blocks")
    seeds = iter(np.random.SeedSequence(seed).generate_state(blocks + 2) >> 1)

    def dense(units: int, name: str, activation: str | None = "relu") -> keras.layers.Dense:
        start = keras.initializers.HeNormal(seed=int(next(seeds)))
        return keras.layers.Dense(
            units, activation, kernel_initializer=start, dtype=dtype, name=name
        )

    net = [
        keras.Input((28, 28, 1), dtype=dtype, name="images"),
        keras.layers.AveragePooling2D(7, dtype=dtype, name="shrink"),
        keras.layers.Flatten(dtype=dtype, name="flatten"),
    ]
    net += [dense(width, f"hidden{number}") for number in range(blocks + 1)]
    return keras.Sequential([*net, dense(10, "logits", None)], name="deep_mlp")


def steps(
    pipelines: Sequence[Pipeline],
    images: np.ndarray,
    labels: np.ndarray,
    repeats: int = 7,
    warmup: int = 3,
) -> list[list[Step]]:
    """Train pipelines on the same batch again and again; every rank must call.

    They take turns, step by step, so that all meet the same disturbances.
    """
    require_count(repeats, "repeats")
    require_count(warmup, "warmup", least=0)
    found: list[list[Step]] = [[] for _ in pipelines]
    for _ in range(warmup + repeats):
        for pipeline, row in zip(pipelines, found, strict=True):
            pipeline.comm.Barrier()
            row.append(pipeline.step(images, labels))
    return [row[warmup:] for row in found]


def typical(measured: Sequence[Step]) -> Step:
    """Choose the step whose bubble is the median one."""
    require(bool(measured), "measured", "hold at least one step", list(measured))
    return sorted(measured, key=lambda step: step.waiting)[len(measured) // 2]


def cell_seconds(measured: Sequence[Step]) -> dict[str, list[float]]:
    """Take the median time of the cells of each stage, forward and backward."""
    require(bool(measured), "measured", "hold at least one step", list(measured))
    cells = [cell for step in measured for cell in step.cells]
    stages = range(1 + max(cell.stage for cell in cells))
    return {
        kind: [
            statistics.median(c.seconds for c in cells if c.stage == stage and c.kind == kind)
            for stage in stages
        ]
        for kind in (FORWARD, BACKWARD)
    }
