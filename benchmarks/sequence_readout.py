"""Forecast the sunspots with recurrent nets and a transformer, by its read-out and its steps.

    python benchmarks/sequence_readout.py

The windows, years and rates are those of lesson 13: learn before 1900, stop by 1900 to 1929, test
on 1930 to 2008. The transformer reads out the mean over the 22 positions or the last position.
About 4 minutes on 2 cores.
"""

import keras
import numpy as np
import tensorflow as tf

from dlcourse import measured, nets
from dlcourse.taken_apart import train_restore_best
from dlguide import published

SEEDS = range(8)
STEPS = (80, 400)
LENGTH = 22
TRANSFORMER = {"width": 16, "heads": 2, "layers": 1}


def build(net, seed):
    name, _, readout = net.partition(", ")
    sizes = TRANSFORMER if name == "transformer" else {}
    model = nets.build(name, seed=seed, length=LENGTH, **sizes)
    if readout != "last":
        return model
    last = model.get_layer("norm").output[:, -1]
    return keras.Model(model.inputs, keras.layers.Dense(1)(last))


def main():
    rows = published.load("sunspots")
    years = np.array([row["year"] for row in rows])[LENGTH:]
    roots = np.sqrt([row["sunspots"] for row in rows])
    windows = np.lib.stride_tricks.sliding_window_view(roots, LENGTH + 1)
    past, target = windows[:, :-1], windows[:, -1]
    parts = {"learn": years < 1900, "choose": abs(years - 1914.5) < 15, "test": years >= 1930}
    middle, scale = target[parts["learn"]].mean(), target[parts["learn"]].std()
    x, y = (((each - middle) / scale).astype("float32")[..., None] for each in (past, target))
    samples, held = ([tf.constant(one[parts[part]]) for one in (x, y)] for part in list(parts)[:2])
    loss, found = keras.losses.MeanSquaredError(), []
    for net in ("rnn", "lstm", "gru", "transformer, mean", "transformer, last"):
        for steps in STEPS:
            for seed in SEEDS:
                keras.utils.set_random_seed(seed)
                model = build(net, seed)
                train_restore_best(model, lambda _: samples, held, loss, steps, 0.01)
                forecast = np.maximum(np.asarray(model(x))[:, 0] * scale + middle, 0) ** 2
                errors = {
                    part: round(float(np.sqrt(np.mean((forecast - target**2)[own] ** 2))), 2)
                    for part, own in parts.items()
                }
                found.append({"net": net, "steps": steps, "seed": seed, **errors})
                print(found[-1], flush=True)
    print(measured.write("sequence_readout", found, SEEDS))


if __name__ == "__main__":
    main()
