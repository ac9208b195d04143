"""Train the MNIST CNN with a large batch: by the recipe, and as if the batch were still small.

Run it with nothing else on the machine; one training takes some 80 s on 2 cores:

    python benchmarks/large_batch_mnist.py --folder build/experiments/large_batch_mnist

Each training is recorded in the folder as it ends. A call that is interrupted goes on where it
was, and a later one asks for more seeds.

The rate was chosen for a batch of 64. "recipe" has 16 times the batch and, by the linear rule, 16
times the rate, with a gradual warmup over 2 epochs whose momentum follows the rate. "naive" has
16 times the batch and nothing else. All train for 8 epochs, and all rates fall in a straight line
to 0. The goals: the recipe reaches 99.2 % on the test set, naive scaling stays at least 0.5 points
below it. Seconds are those of training; evaluation is left out.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from dlguide.training import experiments

GOAL, APART, HELD = 0.992, 0.005, 0.99
BASELINE = experiments.ExperimentConfig(
    model="mnist_cnn",
    epochs=8,
    batch_per_worker=64,
    base_rate=0.25 / 16,
    base_batch=64,
    decay="linear",
)
LARGE = replace(BASELINE, batch_per_worker=1024)  # 16 virtual workers take longer
RECIPES = {
    "baseline": BASELINE,
    "naive": LARGE,
    "recipe": replace(LARGE, rate_scaling="linear", warmup="gradual", warmup_epochs=2),
}


def main() -> None:
    """Print the table, the differences, and whether the goals are met."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--seeds", type=int, default=5, help="trainings of each recipe")
    options.add_argument("--folder", help="of the records; none are kept without one")
    options.add_argument("--recipes", nargs="+", choices=RECIPES, default=list(RECIPES))
    chosen = options.parse_args()

    named = {name: RECIPES[name] for name in chosen.recipes}
    configs = experiments.each_seed(named, range(chosen.seeds))
    configs.sort(key=lambda one: one.seed)  # an interrupted call leaves whole comparisons behind
    results = experiments.run(configs, chosen.folder)
    for name, one in named.items():
        print(f"{name}: batch {one.global_batch}, rate {one.rate:g}, {one.epochs} epochs")
    found = experiments.table(results, accuracy=HELD)
    print(found)
    for name in named:
        if name != "recipe" and "recipe" in named:
            pair = experiments.select(results, "recipe"), experiments.select(results, name)
            print(experiments.compare(*pair))
    if {"recipe", "naive"} <= set(named):
        mean, below = found["recipe"].accuracy, found["naive"].accuracy
        print(f"the recipe reaches {GOAL:.1%}: {'yes' if mean >= GOAL else 'no'}, {mean:.2%}")
        apart = "yes" if mean - below >= APART else "no"
        print(f"naive stays {100 * APART:g} points below: {apart}, {100 * (mean - below):.2f}")


if __name__ == "__main__":
    main()
