"""Optimizer state in parts on the ranks makes the steps of Keras' optimizers on one process."""

import os

import numpy as np
import pytest
from lanes import RANKS, long
from on_ranks import on_ranks

from dlguide.parallel import zero

pytestmark = pytest.mark.ranks

SHAPES, STEPS, SAMPLES = [(5, 3), (3,), (3, 7), (1,)], 6, 12


def sharded_steps(shapes, steps, samples):
    import numpy as np
    from mpi4py import MPI

    from dlguide.parallel import zero

    comm, found = MPI.COMM_WORLD, {}

    class Counting(MPI.Intracomm):
        """Counts the bytes that go out through it."""

        sent = 0

        def Sendrecv(self, buffer, *rest):
            self.sent += buffer[1]
            return super().Sendrecv(buffer, *rest)

    for method in zero.STATES:
        for dtype in ("f8", "f4"):
            random = np.random.default_rng(9)
            weights = [random.normal(size=shape).astype(dtype) for shape in shapes]
            counting = Counting(comm)
            optimizer = zero.ZeroOptimizer(weights, counting, method, rate=0.1)
            for _ in range(steps):
                rows = [random.normal(size=(samples, *shape)) for shape in shapes]
                mine = [each[comm.rank :: comm.size].sum(0).astype(dtype) for each in rows]
                optimizer.step(mine, samples)
            found[f"{method} {dtype}"] = {
                "weights": [weight.tolist() for weight in weights],
                "sent": [optimizer.sent_bytes, counting.sent],
                "state": optimizer.state_bytes,
            }
    return found


def by_keras(method, dtype):
    os.environ["KERAS_BACKEND"] = "tensorflow"
    import keras

    keras_optimizers = {
        "sgd": lambda: keras.optimizers.SGD(0.1),
        "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
        "adam": lambda: keras.optimizers.Adam(0.1),
    }
    random = np.random.default_rng(9)
    values = [random.normal(size=shape).astype(dtype) for shape in SHAPES]
    weights = [keras.Variable(value, dtype=np.dtype(dtype).name) for value in values]
    optimizer = keras_optimizers[method]()
    for _ in range(STEPS):
        rows = [random.normal(size=(SAMPLES, *shape)) for shape in SHAPES]
        optimizer.apply([each.mean(0).astype(dtype) for each in rows], weights)
    return [weight.numpy() for weight in weights]


@pytest.fixture(scope="module")
def right():
    return {
        f"{method} {dtype}": by_keras(method, dtype)
        for method in zero.STATES
        for dtype in ("f8", "f4")
    }


@pytest.mark.parametrize("ranks", [*RANKS, *long(5)])
def test_sharded_steps_equal_those_of_keras(tmp_path, ranks, right):
    arguments = {"shapes": SHAPES, "steps": STEPS, "samples": SAMPLES}
    everyone = on_ranks(ranks, sharded_steps, tmp_path, **arguments)
    total = sum(int(np.prod(shape)) for shape in SHAPES)
    for name, wanted in right.items():
        method, dtype = name.split()
        for found in everyone:
            for came, one in zip(found[name]["weights"], wanted, strict=True):
                # Keras keeps beta2 in float32, where 1 - 0.999 is 5e-5 too large
                limit = 1e-4 if method == "adam" else 1e-6
                assert np.abs(np.subtract(came, one)).max() <= limit, name
            assert found[name]["weights"] == everyone[0][name]["weights"]  # bit by bit alike
            assert found[name]["sent"][0] == found[name]["sent"][1]
        nbytes = total * np.dtype(dtype).itemsize
        sent = sum(found[name]["sent"][0] for found in everyone)
        assert sent == pytest.approx(STEPS * ranks * zero.bytes_sent(nbytes, ranks))
        state = sum(found[name]["state"] for found in everyone)
        assert state == nbytes * zero.STATES[method]


def alone_and_together():
    import numpy as np
    from mpi4py import MPI

    from dlguide.parallel.zero import ZeroOptimizer

    comm, random, apart = MPI.COMM_WORLD, np.random.default_rng(1), []
    for method in ("momentum", "adam"):
        one, many = (random.normal(size=(4, 5)) for _ in range(2))
        many[...] = one
        alone = ZeroOptimizer([one], MPI.COMM_SELF, method, 0.1)
        together = ZeroOptimizer([many], comm, method, 0.1)
        for _ in range(5):
            rows = random.normal(size=(12, 4, 5))
            alone.step([rows.sum(0)], 12)
            together.step([rows[comm.rank :: comm.size].sum(0)], 12)
        apart.append(float(np.abs(one - many).max()))
    return apart


@pytest.mark.parametrize("ranks", [2, 3, *long(4)])
def test_sharded_run_equals_the_serial_one_in_float64(tmp_path, ranks):
    assert max(map(max, on_ranks(ranks, alone_and_together, tmp_path))) <= 1e-12


def what_is_refused():
    import numpy as np
    from mpi4py import MPI

    from dlguide.parallel.zero import ZeroOptimizer

    comm = MPI.COMM_WORLD
    try:
        ZeroOptimizer([np.zeros(4 + (comm.rank == 1))], comm)
    except ValueError as error:
        return str(error)
    return "nothing"


def test_weights_that_differ_are_told_to_all_ranks_alike(tmp_path):
    told = on_ranks(2, what_is_refused, tmp_path, timeout_s=20)
    assert told[0] == told[1]
    assert "rank 0: shape (4,) of float64" in told[0]


def test_memory_is_that_of_the_guide_and_shrinks_with_ranks():
    # the guide's table 2: 131 M parameters take 2.1 GB, weights, gradients and two moments
    assert zero.memory_bytes(4 * 131e6, 1) == pytest.approx(2.1e9, rel=0.01)
    assert zero.memory_bytes(100, 4) == 250
    assert zero.memory_bytes(100, 4, "sgd") == 200
    with pytest.raises(ValueError, match="`method` must be one of adam, momentum, sgd"):
        zero.memory_bytes(100, 4, "adagrad")
