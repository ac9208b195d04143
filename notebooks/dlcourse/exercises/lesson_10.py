"""Exercises of lesson 10: rates, Adam, curves explained, noise, evolution."""

import math

import numpy as np

from dlcourse.exercises.engine import Exercise, Letters

TURN = np.array([[0.6, -0.8], [0.8, 0.6]])
RANDOM = np.random.default_rng(10)


def largest_rate(hessian, momentum):
    return 2 * (1 + momentum) / np.linalg.eigvalsh(hessian)[-1]


def adam(weights, gradient, mean, square, step, rate, inside=0.0):
    mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
    root = np.sqrt(square / (1 - 0.999**step) + inside) + 1e-8 - inside
    return weights - rate * mean / (1 - 0.9**step) / root, mean, square


def smallest_batch(variance, length, share, samples):
    allowed = (share * length) ** 2
    return math.ceil(variance * samples / (allowed * (samples - 1) + variance) - 1e-9)


def generation(comm, draw, loss, parents):
    children = draw()
    own = [(loss(children[i]), i) for i in range(comm.rank, len(children), comm.size)]
    ranked = sorted(each for part in comm.allgather(own) for each in part)
    return np.mean([children[i] for _, i in ranked[:parents]], axis=0), 8 * len(children)


def call_generation(answer, comm, children, parents):
    """What `generation` returns, and how often this rank has judged each of the children."""
    known, judged = [child.tobytes() for child in children], np.zeros(len(children))

    def loss(child):
        judged[known.index(np.asarray(child).tobytes())] += 1
        return float(np.sum(child**2))

    return answer(comm, lambda: [child.copy() for child in children], loss, parents), judged


def shared(results):
    """The results of all ranks when each child was judged once and the ranks did equal work."""
    judged = np.array([each for _, each in results])
    fair = np.ptp(judged.sum(axis=1)) <= 1 and (judged.sum(axis=0) == 1).all()
    if not fair:
        return "children judged twice or never, or unequal work"
    if any(nbytes != 8 * judged.shape[1] for (_, nbytes), _ in results):
        return "a number of bytes that is not that of all losses"
    return [came for came, _ in results]


def judged(sign=1, order=lambda n, p: np.arange(n), nbytes=8, shares=True):
    """Serially the best children; loss i is that of child `order`[i]."""

    def serial(inputs):
        (children, parents), n, p = inputs[0], len(inputs[0][0]), len(inputs)
        losses = sign * np.sum(children**2, axis=(1, 2))[order(n, p)]
        mean = children[np.argsort(losses)[:parents]].mean(axis=0)
        return [((mean, nbytes * n), shares * (np.arange(n) % p == rank)) for rank in range(p)]

    return serial


EXERCISES = {
    "10-1": Exercise(
        largest_rate,
        cases=[
            *((np.diag([1.0, 5.0]), 0.0), (np.diag([5.0, 1.0, 2.0]), 0.0)),
            *((TURN @ np.diag([1.0, 25.0]) @ TURN.T, 0.0), (np.diag([1.0, 5.0]), 0.9)),
        ],
        hint="The limit is 2 (1 + m) / L, with the largest curvature L of all directions.",
        mistakes={
            "The steepest direction decides: the largest curvature, not the sum.": (
                lambda h, m: 2 * (1 + m) / np.trace(h)
            ),
            "This valley is not along the axes. What of a matrix does not change when it turns?": (
                lambda h, m: 2 * (1 + m) / np.diag(h).max()
            ),
            "Momentum allows more: 2 (1 + m) / L.": lambda h, m: largest_rate(h, 0),
        },
        remark="So momentum 0.9 allows nearly twice the rate, and each step counts ten times.",
    ),
    "10-2": Exercise(
        adam,
        call=lambda answer, *given: (old := repr(given), answer(*given), old == repr(given))[1:],
        cases=[
            (np.ones(3), RANDOM.normal(size=3), np.zeros(3), np.zeros(3), 1, 0.01),
            *((np.ones(1), np.array([g]), np.zeros(1), np.zeros(1), 1, 0.01) for g in (1e-6, 1e3)),
            (np.ones(3), *RANDOM.normal(size=(2, 3)), np.full(3, 0.02), 5, 0.01),
        ],
        hint="Divide mean by 1 - b1^step and square by 1 - b2^step; the root; epsilon outside it.",
        mistakes={
            "Make new arrays: `mean = b1 * mean + ...`, not `mean *= b1`.": (
                lambda *given: [adam(*given), given[2].fill(7)][0]
            ),
            "The stored memories stay uncorrected.": lambda *a: (
                *(adam(*a)[0], adam(*a)[1] / (1 - 0.9 ** a[4]), adam(*a)[2] / (1 - 0.999 ** a[4])),
            ),
            "Divide by 1 - b1^step and 1 - b2^step.": lambda *a: adam(*a[:4], 10**6, a[5]),
            "Epsilon is added outside the root.": lambda *a: adam(*a, 1e-8),
        },
        remark="The first step is as long as the rate, 0.01 for a gradient of 1000 and of 0.001. "
        "Only a gradient near epsilon, 1e-8, is too small to count.",
    ),
    "10-3": Letters(
        {
            "A": ("rate too small", "It falls straight and has not arrived. What is so slow?"),
            "B": ("rate too large", "Each step ends higher than before. Section 2 has its limit."),
            "C": ("over-fitting", "Training falls on, the test loss rises. Section 5 has both."),
            "D": ("too few updates", "Training is high too. With a small batch the rate was fine."),
            "E": ("noise", "It goes up and down near the bottom; a smaller rate ends that."),
        },
        remark="Two losses, training and test, over the epochs: most of what one needs to see.",
    ),
    "10-4": Exercise(
        smallest_batch,
        cases=[
            *((100.0, 1.0, 1 / 30, 60_000), (100.0, 1.0, 1 / 3, 60_000), (13.2, 1.0, 0.5, 2_000)),
            *((5.0, 2.0, 0.3, 500), (1.0, 4.0, 0.9, 100)),
        ],
        hint="Solve variance (N - B) / (B (N - 1)) = (share length)^2 for the batch B.",
        mistakes={
            "A smaller one would do: solve variance (N - B) / (B (N - 1)) = (share length)^2.": (
                lambda v, g, s, n: min(n, math.ceil(v / (s * g) ** 2 - 1e-9))
            ),
            "More than all samples? With all of them there is no noise: the second factor.": (
                lambda v, g, s, n: math.ceil(v / (s * g) ** 2 - 1e-9)
            ),
            "Its noise is too large: is the length of the noise the root of its variance?": (
                lambda v, g, s, n: min(n, math.ceil(v / (s * g)))
            ),
            "Its noise is a little too large: round up.": lambda *a: smallest_batch(*a) - 1,
            "A whole number, rounded up.": (
                lambda v, g, s, n: v * n / ((s * g) ** 2 * (n - 1) + v)
            ),
        },
        remark="A tenth of the noise took 41 times the batch, not 100 times: drawn without "
        "replacement, all samples together have no noise.",
    ),
    "10-5": Exercise(
        generation,
        ranks=(2, 3),
        cases=lambda p: [
            [(np.random.default_rng(n).normal(size=(n, 2, 3)), parents)] * p
            for n, parents in ((4 * p, 3), (4 * p + 1, 2))
        ],
        call=call_generation,
        view=shared,
        serial=judged(),
        hint="The mean of the best of all children, and the bytes of all losses.",
        mistakes={
            "Which rank judges which? children[comm.rank :: comm.size].": judged(shares=False),
            "The smallest losses are the best.": judged(-1),
            "Does loss i still belong to child i?": (
                judged(order=lambda n, p: np.concatenate([np.arange(r, n, p) for r in range(p)]))
            ),
            "8 bytes for each loss of all ranks, and no child is sent.": judged(nbytes=1),
        },
        remark="8 bytes per child, however many weights there are: the gradient of ResNet-50 has "
        "102 million bytes.",
    ),
}
