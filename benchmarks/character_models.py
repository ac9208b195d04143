"""Predict the next character of a sonnet: tables of counts against a small transformer.

    python benchmarks/character_models.py

As in lesson 13: eleven sonnets to learn from, the twelfth to choose by, the last one to test. About
5 minutes on 2 cores.
"""

import keras
import numpy as np

from dlcourse import measured, nets
from dlcourse.taken_apart import train_restore_best
from dlguide.files import data_folder

SEEDS = range(5)
LENGTH, BATCH = 64, 16
TRAININGS = ((0.0, 400), (0.2, 600))  # dropout, steps


def pieces(tokens, begins):
    cut = tokens[np.asarray(begins)[:, None] + np.arange(LENGTH + 1)]
    return cut[:, :-1], cut[:, 1:]


def main():
    text = (data_folder() / "texts/sonnets.txt").read_text().lower()
    symbols = sorted(set(text))
    tokens = np.array([symbols.index(one) for one in text])
    test = text.rindex("\n\n") + 2
    choose = text.rindex("\n\n", 0, test - 2) + 2
    learn, choose, test = np.split(tokens, [choose, test])
    looks = {
        part: pieces(own, range(0, len(own) - LENGTH, LENGTH))
        for part, own in (("choose", choose), ("test", test))
    }
    crossentropy, found = keras.losses.SparseCategoricalCrossentropy(from_logits=True), []
    for dropout, steps in TRAININGS:
        for seed in SEEDS:
            net = nets.build(
                "causal_transformer", seed=seed, length=LENGTH, vocabulary=len(symbols),
                width=64, dropout=dropout,
            )  # fmt: skip
            begins = np.random.default_rng(seed).integers(0, len(learn) - LENGTH, (steps, BATCH))

            def draw(step, begins=begins):
                return pieces(learn, begins[step])

            losses = train_restore_best(net, draw, looks["choose"], crossentropy, steps, 3e-3)
            inputs, wanted = looks["test"]
            row = {
                "dropout": dropout, "steps": steps, "seed": seed,
                "best_step": min(losses, key=losses.get), "choose": round(min(losses.values()), 4),
                "last": round(losses[steps], 4),
                "test": round(float(crossentropy(wanted, net(inputs))), 4),
            }  # fmt: skip
            found.append(row)
            print(row, flush=True)
    print(measured.write("character_models", found, SEEDS))


if __name__ == "__main__":
    main()
