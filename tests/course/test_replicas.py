"""Replicate, scatter, gather: the step of one process, and what rank 0 holds and moves for it.

Tests dlcourse.replicas.
"""

from __future__ import annotations

import numpy as np
import pytest
from lanes import RANKS
from on_ranks import on_ranks

from dlcourse import replicas


def steps_on_ranks(samples):
    """Train a plane through points with momentum; weights in two arrays."""
    import numpy as np
    from mpi4py import MPI

    from dlcourse.replicas import PHASES, Replicas

    comm = MPI.COMM_WORLD
    random = np.random.default_rng(3)
    x, y = random.random((samples, 4)), random.random(samples)
    start = 0.5 if comm.rank == 0 else 99.0  # only those of rank 0 count
    weights = [np.full(4, start), np.full(1, start)]
    state = [np.zeros(4), np.zeros(1)]

    def gradient(weights, arrays):
        x, y = arrays
        off = x @ weights[0] + weights[1] - y
        return float(np.mean(off**2)), [2 * x.T @ off / len(y), np.array([2 * off.mean()])], 24

    def update(weights, gradients):
        for weight, moved, slope in zip(weights, state, gradients, strict=True):
            moved *= 0.9
            moved += slope
            weight -= 0.1 * moved

    net = Replicas(comm, weights, gradient, update, state)
    losses = [net.step([x, y] if comm.rank == 0 else None) for _ in range(3)]
    return {
        "losses": losses,
        "weights": [each.tolist() for each in net.weights],
        "held": [net.held.weights, net.held.gradients, net.held.state, net.held.inputs],
        "arriving": net.held.arriving,
        "activations": net.held.activations,
        "moved": net.moved,
        "phases": list(net.seconds) == list(PHASES),
    }


@pytest.mark.parametrize("ranks", RANKS)
def test_rank_0_makes_the_step_of_one_process_and_holds_what_memory_says(ranks, tmp_path):
    samples = 13  # not divided evenly
    random = np.random.default_rng(3)
    x, y = random.random((samples, 4)), random.random(samples)
    x = np.c_[x, np.ones(samples)]
    weight, moved, losses = np.full(5, 0.5), np.zeros(5), []
    for _ in range(3):
        off = x @ weight - y
        losses.append(np.mean(off**2))
        moved = 0.9 * moved + 2 * x.T @ off / samples
        weight = weight - 0.1 * moved
    found = on_ranks(ranks, steps_on_ranks, tmp_path, samples=samples)
    assert found[0]["losses"] == pytest.approx(losses, rel=1e-12)
    assert np.concatenate(found[0]["weights"]) == pytest.approx(weight, rel=1e-12)
    dealt = [40 * len(each) for each in np.array_split(y, ranks)]
    kinds = replicas.memory(ranks, 5 * 8, 40 * samples, 24 * ranks, state_copies=1)
    through = [2 * 40 + each for each in dealt]
    for rank, one in enumerate(found):
        kind = kinds[min(rank, 1)]
        assert one["held"][:3] == [kind.weights, kind.gradients, kind.state]
        assert one["held"][3] == (dealt[rank] if rank else 40 * samples)
        assert one["held"][3] == pytest.approx(kind.inputs, abs=40)
        assert one["activations"] == kind.activations == 24
        assert one["arriving"] == kind.arriving
        assert one["moved"] == (through[rank] if rank else sum(through[1:]))
        assert one["phases"]


def test_the_first_device_holds_gradients_and_state_that_the_others_do_not():
    # guide, Table 2: 131 M and 81 M weights, 6 + 6 frames of 128 x 128 x 3, one sample a device
    weights, frames = 4 * (131 + 81) * 10**6, 8 * 2 * 6 * 128 * 128 * 3 * 4
    first, other = replicas.memory(8, weights, frames, 8 * 10**9)
    assert first.total - other.total == 3 * weights + frames * 7 // 8
    one, same = replicas.memory(1, weights, frames // 8, 10**9)
    assert one == same
    assert one.total == 4 * weights + frames // 8 + 10**9
