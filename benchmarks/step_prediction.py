"""Compare the step of 2 ranks with its prediction, and with processes that exchange nothing.

    python benchmarks/step_prediction.py
    python benchmarks/step_prediction.py --nets mnist_cnn=100 --steps 21

`dlcourse.bench.scaling` measures all parts in turns. A step is predicted from the parts of both
ranks (the slower one's computing, and the exchange), and from the computing of one rank alone and
the exchange. The efficiency is the throughput of 2 ranks over that of 2 processes, each for itself.
"""

from __future__ import annotations

import argparse

import numpy as np
from report import compare, report

from dlcourse.bench import scaling

NETS = ["mlp=100", "mnist_cnn=16", "mnist_cnn=100", "mnist_cnn_bn=100"]
NETS += ["resnet8=32", "resnet20=16", "resnet20=32", "resnet32=16"]  # name=batch of a rank
EFFICIENT = ("mnist_cnn=100", "resnet20=32")


def main() -> None:
    """Print a line for each net, then the errors."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--nets", nargs="+", default=NETS, metavar="NAME=BATCH")
    options.add_argument("--steps", type=int, default=99, help="measured steps of each part")
    chosen = options.parse_args()
    errors: dict[str, list[float]] = {"the parts of both ranks": [], "one rank alone": []}
    rounds = []
    for each in chosen.nets:
        net, batch = each.split("=")
        _, (row,) = scaling.measure((2,), net, int(batch), steps=chosen.steps)
        ways = (row.predicted.seconds, row.alone.median + row.predicted.exposed_s)
        ratios = [seconds / row.step.median for seconds in ways]
        for name, ratio in zip(errors, ratios, strict=True):
            errors[name].append(abs(ratio - 1))
        said = " and ".join(f"{ratio:.3f}" for ratio in ratios)
        print(f"{each}: a step {row.step}; predicted / measured {said}", flush=True)
        step_s, alone_s = (
            np.median(np.reshape(timing.seconds, (-1, 3)), axis=1)  # round by round
            for timing in (row.step, row.together)
        )
        rounds.append(step_s)
        if each in EFFICIENT or len(chosen.nets) == 1:
            compare(f"throughput of 2 ranks / 2 processes, {each}", step_s, alone_s, least=0.95)
    for (name, found), most in zip(errors.items(), (0.03, 0.05), strict=True):
        what = f"step of 2 ranks predicted from {name}, error, {len(found)} nets"
        report(what, found, most=most, seconds=rounds)


if __name__ == "__main__":
    main()
