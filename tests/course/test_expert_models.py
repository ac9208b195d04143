"""The small model of lesson 92: its gradients, and ranks that agree with one process."""

import numpy as np
import pytest
from on_ranks import on_ranks


def slopes_against_differences():
    import numpy as np
    from mpi4py import MPI

    from dlcourse import expert_models
    from dlcourse.parallel.experts import MixtureOfExperts

    random, found = np.random.default_rng(0), []
    width = expert_models.WIDTH
    windows, labels = random.integers(0, 9, (40, expert_models.CONTEXT)), random.integers(0, 9, 40)
    shapes = (9, expert_models.EMBEDDING), (expert_models.CONTEXT * expert_models.EMBEDDING, width)
    ends = [random.normal(size=shape) / shape[0] ** 0.5 for shape in (*shapes, (width, 9))]
    dense = expert_models.Dense(12, seed=0)
    dense.weights = [each.astype("f8") for each in dense.weights]
    for layer in (dense, MixtureOfExperts(MPI.COMM_SELF, width, 6, 4, 2, 2.0, dtype="f8")):
        gradients, _ = expert_models._gradients(ends, layer, windows, labels, 0.0, 1)
        for array, gradient in zip((*ends, *layer.weights), gradients, strict=True):
            there, losses = random.normal(size=array.shape), []
            for step in (1e-6, -2e-6):
                array += step * there
                losses.append(expert_models._loss(ends, layer, windows, labels))
            array += 1e-6 * there
            found.append(((losses[0] - losses[1]) / 2e-6, float((gradient * there).sum())))
    return found


def test_gradients_are_those_of_the_loss(tmp_path):
    for difference, slope in on_ranks(1, slopes_against_differences, tmp_path)[0]:
        assert difference == pytest.approx(slope, rel=1e-4, abs=1e-7)


def trained():
    from unittest import mock

    from mpi4py import MPI

    from dlcourse import expert_models

    with mock.patch.object(expert_models, "CAPACITY", 4.0):  # places do not depend on the ranks
        return [
            expert_models.train(comm, kind, steps=8).held_out_nats
            for kind in ("dense, equal work", "experts, loss", "experts, bias")
            for comm in (MPI.COMM_WORLD, MPI.COMM_SELF)
        ]


def test_training_on_ranks_equals_that_of_one_process(tmp_path):
    for losses in on_ranks(2, trained, tmp_path, timeout_s=120):
        np.testing.assert_allclose(losses[::2], losses[1::2], rtol=1e-5)
        assert len(set(losses[::2])) == 3
