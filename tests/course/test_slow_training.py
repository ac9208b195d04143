"""A GPT over slow links: gradients, bytes, equal weights.

Tests dlcourse.slow_training, and lesson 94 where no namespace can be made.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from lanes import long

from dlcourse import slow_training
from dlcourse.slow_training import EVERY, SCHEMES
from dlguide.cluster import Cluster
from dlguide.parallel import compression


def trained(comm):
    """Return for each scheme a short training's bytes and loss, and how far ranks are apart."""
    found = {}
    for name, scheme in SCHEMES.items():
        steps = max(EVERY, scheme.every)
        run = slow_training.train(comm, name, 0, steps, steps)
        apart = float(np.abs(run.weights - comm.bcast(run.weights)).max())
        moved = float(np.abs(run.weights - slow_training.initial_weights(0)).max())
        found[name] = run.sent_nbytes, run.loss_nats, apart, moved
    return found


def accumulated(comm):
    """Return how far a step with the gradients of four batches is from one that is made here."""
    few = replace(SCHEMES["4 steps in 16 bits"], code=compression.none)
    weights = slow_training.initial_weights(0)
    state = [np.zeros_like(weights) for _ in range(2)]
    of_batches = [
        slow_training.gradient(weights, *slow_training.batch(comm, 0, step)) for step in range(1, 5)
    ]
    mean = compression.none().allreduce(np.mean(of_batches, axis=0), comm)
    slow_training.adamw(weights, mean, state, 1, few.rate * slow_training.schedule(4, 4))
    return float(np.abs(slow_training.train(comm, few, 0, 4, 0).weights - weights).max())


def rounded(comm):
    """Return how far averages of changes in 16 bits are from those in 32 bits."""
    names = "local in 16 bits", "local steps"
    coarse, fine = (slow_training.train(comm, name, 0, EVERY, 0).weights for name in names)
    return float(np.abs(coarse - fine).max())


def union(comm):
    """Return how far the mean gradient is from that of all windows, and how the loss falls."""
    flat, mine = slow_training.initial_weights(1), slow_training.batch(comm, 3, 5)
    mean = comm.allreduce(slow_training.gradient(flat, *mine)) / comm.size
    whole = [np.concatenate(each) for each in zip(*comm.allgather(mine), strict=True)]
    gradient = slow_training.gradient(flat, *whole)
    ahead = flat - 1e-2 * gradient  # a small step along it lowers the loss by its square
    losses = [slow_training.net().loss(each, *whole) for each in (flat, ahead)]
    fallen = (losses[0] - losses[1]) / (1e-2 * float(gradient @ gradient))
    return float(np.abs(mean - gradient).max() / np.abs(gradient).max()), fallen


@pytest.mark.parametrize("ranks", [2, *long(3)])
def test_schemes_send_what_is_predicted_and_end_with_equal_weights(ranks):
    with Cluster(ranks=ranks, oversubscribe=True) as cluster:
        every, unions = cluster.run(trained), cluster.run(union)
        summed, coarse = cluster.run(accumulated), cluster.run(rounded)
    for scheme in SCHEMES:
        sent, losses, apart, moved = (
            max(each) for each in zip(*(f[scheme] for f in every), strict=True)
        )
        steps = max(EVERY, SCHEMES[scheme].every)
        assert sent == slow_training.total_nbytes(scheme, steps), scheme
        assert all(one[scheme][1] == losses for one in every)
        assert apart == 0.0, scheme
        assert moved > 0.0, scheme
    assert max(summed) <= 1e-6
    # a step of Adam is about its rate, and bfloat16 rounds by at most one part in 2 ** 9
    assert all(0 < each <= 2 * EVERY * SCHEMES["local steps"].rate / 2**9 for each in coarse)
    assert max(apart for apart, _ in unions) <= 1e-4
    assert all(fallen == pytest.approx(1, abs=0.2) for _, fallen in unions)
