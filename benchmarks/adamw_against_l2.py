"""AdamW against Adam with L2: softmax regression on 200 digits, 300 full-batch steps.

Every rate with every decay, on five disjoint training sets; losses on the training images, on 2000
validation images and on 2000 test images. The lowest loss with L2 (by L-BFGS) stands beside them.
"""

import numpy as np
from scipy.optimize import minimize

from dlcourse import measured
from dlcourse.exercises.lesson_10 import adam, regression, small_digits

SETS, STEPS = range(5), 300
RATES = 0.03, 0.1, 0.3, 1.0, 3.0, 10.0
DECAYS = 10.0 ** np.arange(-5, 1.1, 0.5)


def trained(images, labels, rate, decay, way):
    weights, mean, square = np.zeros((3, 50, 10))
    for step in range(1, STEPS + 1):
        inside, beside = (decay, 0.0) if way == "Adam with L2" else (0.0, decay)
        gradient = regression(weights, images, labels)[1] + inside * weights
        weights = weights * (1 - rate * beside)
        weights, mean, square = adam(weights, gradient, mean, square, step, rate)
    return weights


def lowest(images, labels, decay):
    def loss(flat):
        value, gradient = regression(flat.reshape(50, 10), images, labels)
        return value + decay / 2 * flat @ flat, gradient.ravel() + decay * flat

    return minimize(loss, np.zeros(500), jac=True, method="L-BFGS-B").x.reshape(50, 10)


def main():
    others = {"validation": small_digits(2000, 4000), "test": small_digits(0, 2000, test=True)}
    rows = []
    for number in SETS:
        own = small_digits(200 * number, 200 * (number + 1))
        for decay in DECAYS:
            found = {("L-BFGS with L2", 0.0): lowest(*own, decay)}
            for way in ("Adam with L2", "AdamW"):
                with np.errstate(all="ignore"):
                    found |= {(way, rate): trained(*own, rate, decay, way) for rate in RATES}
            for (way, rate), weights in found.items():
                with np.errstate(all="ignore"):
                    losses = {
                        name: regression(weights, *each)[0]
                        for name, each in {"training": own, **others}.items()
                    }
                if np.isfinite(list(losses.values())).all():
                    where = {"way": way, "rate": rate, "decay": f"{decay:.3g}", "set": number}
                    rows.append(where | {name: f"{loss:.4f}" for name, loss in losses.items()})
    print(measured.write("adamw_against_l2", rows, SETS))


if __name__ == "__main__":
    main()
