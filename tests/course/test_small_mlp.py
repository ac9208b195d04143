"""The small net on ranks is the same training as in one process, with the bytes of its formulas.

Tests dlcourse.small_mlp; its gradient is compared with that of Keras in test_kvstore.py.
"""

from __future__ import annotations

import numpy as np
import pytest
from lanes import RANKS
from on_ranks import on_ranks

from dlcourse import small_mlp


def trainings():
    import numpy as np
    from mpi4py import MPI

    from dlcourse import small_mlp
    from dlguide.data.datasets import Dataset
    from dlguide.parallel import compression, local_sgd

    comm, random = MPI.COMM_WORLD, np.random.default_rng(0)
    labels = random.integers(0, 10, 301).astype("uint8")  # shared evenly by no number of ranks
    images = random.random((301, 28, 28, 1), "float32") * 0.2
    for image, label in zip(images, labels, strict=True):
        image[2 * label : 2 * label + 2] += 0.3
    data = Dataset("stripes", images[:220], labels[:220], images[220:], labels[220:])

    def train(way, on=comm, batch=6, **more):
        asked = {"steps": 30, "look_every": 7, "every_steps": 4, "rate": 0.05, "momentum": 0.5}
        return small_mlp.train_on_ranks(way, on, data, batch=batch, **asked | more)

    whole = train(compression.none(), MPI.COMM_SELF, 6 * comm.size)
    shared = train(compression.none())
    met = train(local_sgd.LocalSGD(), momentum=0.0, every_steps=1, steps=9)
    plain = train(compression.none(), momentum=0.0, steps=9)
    falling = train(compression.none(), decay=True)
    split = train(compression.none(), alike=False, batch=5)
    seldom = train(local_sgd.LocalSGD(), alike=False, batch=5, every_steps=30)
    own = small_mlp._epoch(data.train_labels, 5, comm, 1, 0, alike=False)
    classes = {int(c) for part, _ in own for c in data.train_labels[part]}
    kept = all(size == 5 * comm.size for _, size in own)
    kept = kept and {c % comm.size for c in classes} == {comm.rank}
    shapes = small_mlp.initial_weights(0)
    compressors = [
        compression.fp16(), compression.top_k(0.05), compression.one_bit(),
        compression.power_sgd(2), compression.threshold(0.01),
    ]  # fmt: skip
    schemes = local_sgd.LocalSGD(), local_sgd.BlockMomentum(0.25), local_sgd.ElasticAveraging(0.2)
    ways = {}
    for way in (*compressors, *schemes):
        trial = train(way)
        if way in compressors:
            sent = [step * way.step_nbytes(shapes, comm.size) for step in trial.step]
        else:
            sent = [step // 4 * way.nbytes(shapes, comm.size) for step in trial.step]
        ways[way.name] = (list(trial.sent_nbytes) == sent, trial.accuracy[-1])
    return {
        "whole": whole.accuracy, "shared": shared.accuracy, "met": met.accuracy,
        "plain": plain.accuracy, "step": shared.step, "ways": ways,
        "split": split.accuracy[-1], "seldom": seldom.accuracy[-2], "kept": kept,
        "falling": falling.accuracy[-1],
    }  # fmt: skip


@pytest.mark.parametrize("ranks", RANKS)
def test_trainings_on_ranks(ranks, tmp_path):
    results = on_ranks(ranks, trainings, tmp_path, env={"OPENBLAS_NUM_THREADS": "1"})
    for result in results:
        # one image of 81 may lie on the edge, and rounding puts it on this side or that
        assert np.allclose(result["shared"], result["whole"], atol=1.1 / 81)
        assert np.allclose(result["met"], result["plain"], atol=1.1 / 81)
        assert result["shared"][-1] > 0.9
        assert result["step"] == [7, 14, 21, 28, 30]
        # with gradients at every step the parts make one batch
        assert result["split"] > 0.9
        assert result["seldom"] <= result["split"]
        assert result["kept"]
        assert result["falling"] > 0.9
        for name, (as_predicted, accuracy) in result["ways"].items():
            assert as_predicted, name
            assert accuracy > 0.5, name
        for name in ("shared", "met", "ways"):
            assert result[name] == results[0][name]


@pytest.mark.parametrize(
    ("accuracy", "first"),
    [
        ((0.9, 0.9, 0.95, 0.9), 0),
        ((0.95, 0.89, 0.95, 0.9), 2),
        ((0.1, 0.2, 0.3, 0.9), 3),
        ((0.95, 0.95, 0.95, 0.89), None),
    ],
)
def test_an_accuracy_is_held_from_the_look_after_which_none_is_below(accuracy, first):
    run = small_mlp.SchemeRun("none", 2, 0, (5, 10, 15, 20), accuracy, (40, 80, 120, 160), (1,) * 4)
    assert run.held(0.9) == first
