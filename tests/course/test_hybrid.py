"""Grids of data x pipeline and data x tensor equal the whole net with the global batch.

Tests `copies` of dlcourse.parallel.pipeline and dlcourse.parallel.tensor.
"""

import pytest
from lanes import long
from on_ranks import on_ranks


def trained_in_grids(layouts):
    import os

    os.environ["KERAS_BACKEND"] = "tensorflow"
    import keras
    import numpy as np
    import tensorflow as tf
    from mpi4py import MPI

    from dlcourse.parallel.pipeline import PipelineParallel
    from dlcourse.parallel.tensor import TensorParallelModel
    from dlguide import models

    comm, batch, found = MPI.COMM_WORLD, 13, {}  # 13: no number of copies divides it
    random = np.random.default_rng(8)
    # Keras keeps numbers in float32: eighths are the same in both
    sgd_of = lambda: keras.optimizers.SGD(0.125)  # noqa: E731
    for dtype in ("float64", "float32"):
        make = lambda dtype=dtype: models.build("mlp", dtype=dtype)  # noqa: E731
        images = random.normal(size=(batch, 28, 28, 1)).astype(dtype)
        labels = random.integers(0, 10, batch)
        whole, sgd = make(), sgd_of()
        for _ in range(3):
            with tf.GradientTape() as tape:
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, whole(images))
                loss = tf.reduce_mean(losses)
            slopes = tape.gradient(loss, whole.trainable_variables)
            sgd.apply(slopes, whole.trainable_variables)
        right = {"/".join(w.path.split("/")[-2:]): w.numpy() for w in whole.weights}
        for kind, model in layouts:
            copies = comm.size // model
            if kind == "pipeline":
                net = PipelineParallel(make(), comm, sgd_of, 2, uneven=True, copies=copies)
            else:
                net = TensorParallelModel(make(), comm, 0.125, copies)
            for _ in range(3):
                step = net.step(images, labels)
            last = step.loss if kind == "pipeline" else step
            came = {"/".join(p.split("/")[-2:]): w for p, w in net.weights().items()}
            scale = max(np.abs(value).max() for value in right.values())
            apart = max(np.abs(came[path] - right[path]).max() for path in right) / scale
            place = [*net.mesh.mesh.values(), *net.mesh.coordinates.values()]
            sizes = [net.mesh.along("data").size, net.mesh.along("model").size]
            net.mesh.free()
            found[f"{kind} {model} {dtype}"] = [
                *(float(apart), abs(last - float(loss)), place, sizes)
            ]
    return found


@pytest.mark.parametrize(
    ("ranks", "layouts"),
    [
        (2, [("pipeline", 2), ("tensor", 2)]),
        *long(
            (1, [("pipeline", 1), ("tensor", 1)]),
            (3, [("pipeline", 1), ("pipeline", 3), ("tensor", 1), ("tensor", 3)]),
            (4, [("pipeline", 2), ("tensor", 2), ("tensor", 4)]),
        ),
    ],
)
def test_grids_equal_the_whole_net_with_the_global_batch(tmp_path, ranks, layouts):
    everyone = on_ranks(ranks, trained_in_grids, tmp_path, layouts=layouts)
    for rank, found in enumerate(everyone):
        assert len(found) == 2 * len(layouts)
        for name, (apart, loss, place, sizes) in found.items():
            limit = 1e-5 if name.endswith("float32") else 1e-12
            assert max(apart, loss) <= limit, (rank, name)
            model = int(name.split()[1])
            assert place == [ranks // model, model, rank // model, rank % model]
            assert sizes == [ranks // model, model]


def many_grids(grids):
    from mpi4py import MPI

    from dlcourse.parallel.mesh import copies_mesh

    comm = MPI.COMM_WORLD
    for _ in range(grids):  # MPICH can make 2046 communicators
        for copies in (1, comm.size):
            mesh = copies_mesh(comm, copies)
            sizes = [mesh.along("data").size, mesh.along("model").size]
            assert sizes == [copies, comm.size // copies]
    return comm.allreduce(1)


def test_grids_of_one_row_or_column_make_no_communicators(tmp_path):
    assert on_ranks(2, many_grids, tmp_path, grids=1500) == [2, 2]
