"""DiLoCo is its paper's algorithm, whole, in fragments and with messages that travel meanwhile.

Tests DiLoCo of dlguide.parallel.local_sgd.
"""

from __future__ import annotations

import pytest
from lanes import RANKS
from on_ranks import on_ranks


def diloco_on_ranks():
    import numpy as np
    from mpi4py import MPI

    from dlguide.parallel.local_sgd import BlockMomentum, DiLoCo, LocalSGD

    comm, wrong = MPI.COMM_WORLD, []
    p, rank = comm.size, comm.rank
    shapes = [(3, 4), (), (7,), (5, 2), (2,)]
    random = np.random.default_rng(1)
    grads = [[random.normal(size=(p, *s)) for s in shapes] for _ in range(12)]

    def local(arrays, t, rank=rank):
        for array, g in zip(arrays, grads[t], strict=True):
            array -= 0.125 * (g[rank] + array)

    def run(scheme, every=1, steps=12):
        arrays = [np.zeros(s) for s in shapes]
        scheme.begin(arrays)
        sent = []
        for t in range(steps):
            local(arrays, t)
            if (t + 1) % every == 0:
                scheme.synchronise(arrays, comm, t)
                sent.append(scheme.sent)
        return arrays, sent

    def serial(z, m, fragments, every, overlap, mix, steps=12):
        """The algorithm for all ranks in one process, with the fragments' places given."""
        ranks = [[np.zeros(s) for s in shapes] for _ in range(p)]
        model, velocity = [np.zeros(s) for s in shapes], [np.zeros(s) for s in shapes]
        travelling, turn = None, 0

        def outer(i, mean, mix):
            change = model[i] - mean
            velocity[i] = m * velocity[i] + change
            model[i] = model[i] - z * (change + m * velocity[i])
            for arrays in ranks:
                arrays[i][...] = mix * arrays[i] + (1 - mix) * model[i]

        def means(row):
            return [(i, np.mean([arrays[i] for arrays in ranks], 0)) for i in row]

        for t in range(steps):
            for number, arrays in enumerate(ranks):
                local(arrays, t, number)
            if (t + 1) % every == 0:
                for i, mean in travelling or []:
                    outer(i, mean, mix)
                found = means(fragments[turn % len(fragments)])
                turn += 1
                travelling = found if overlap else None
                for i, mean in [] if overlap else found:
                    outer(i, mean, 0.0)
        before = [array.copy() for array in ranks[rank]]
        for i, mean in travelling or []:
            outer(i, mean, mix)
        last = None if overlap else (turn - 1) % len(fragments)
        for number, row in enumerate(fragments):
            for i, mean in means(row) if number != last else []:
                outer(i, mean, 0.0)
        return before, ranks[rank]

    def apart(a, b):
        scale = max(np.abs(x).max() for x in b)
        return max(np.abs(x - y).max() for x, y in zip(a, b, strict=True)) / scale

    # H = 1, outer rate 1, no momentum: averaging, which with plain SGD is data parallelism
    one, two = run(DiLoCo(1.0, 0.0))[0], run(LocalSGD())[0]
    if not all((a == b).all() for a, b in zip(one, two, strict=True)):
        wrong.append("H = 1 is not averaging bit by bit")
    together = [np.zeros(s) for s in shapes]
    for t in range(12):
        for array, g in zip(together, grads[t], strict=True):
            array -= 0.125 * (g.mean(0) + array)
    if apart(one, together) > 1e-12:
        wrong.append("H = 1 is not data parallelism")
    # the same sequence as block momentum with its look-ahead
    if apart(run(DiLoCo(0.6, 0.8), 3)[0], run(BlockMomentum(0.8, 0.6), 3)[0]) > 1e-12:
        wrong.append("is not block momentum")

    places = DiLoCo(fragments=3).fragments_of([np.zeros(s) for s in shapes])
    whole = [[*range(len(shapes))]]
    for z, m, rows, every, overlap, mix in (
        (0.7, 0.9, whole, 4, False, 0.0),
        (0.7, 0.9, places, 2, False, 0.0),
        (0.7, 0.9, whole, 3, True, 0.5),
        (0.5, 0.4, places, 2, True, 0.25),
        (1.0, 0.0, places, 1, True, 0.0),
    ):
        name = [z, m, len(rows), every, overlap, mix]
        scheme = DiLoCo(z, m, len(rows), overlap, mix)
        arrays, sent = run(scheme, every)
        if not overlap:
            each = scheme.fragment_nbytes(arrays, p)
            right = np.cumsum([each[k % len(rows)] for k in range(len(sent))]).tolist()
            if sent != right or sum(each) != scheme.nbytes(arrays, p):
                wrong.append(["bytes", name, sent, right])
            if scheme.synchronisations != len(sent):
                wrong.append(["counts", name])
        before, after = serial(z, m, rows, every, overlap, mix)
        if apart(arrays, before) > 1e-12:
            wrong.append(["before the end", name, apart(arrays, before)])
        scheme.finish(arrays)
        if apart(arrays, after) > 1e-12:
            wrong.append(["at the end", name, apart(arrays, after)])
        if len(set(comm.allgather(b"".join(a.tobytes() for a in arrays)))) != 1:
            wrong.append(["ranks end apart", name])

    told = []
    for scheme, count, step in (
        (DiLoCo(fragments=3), 2, 0),
        (DiLoCo(), 2, rank),
        (DiLoCo(), 2 + rank, 0),
        (DiLoCo(0.7 if rank else 0.5), 2, 0),
    ):
        arrays = [np.zeros(3)] * count
        scheme.begin(arrays)
        try:
            scheme.synchronise(arrays, comm, step)
            told.append("nothing")
        except ValueError as error:
            told.append(str(error))
    try:
        DiLoCo().synchronise([np.zeros(3)], comm)
    except ValueError as error:
        told.append(str(error))
    return [wrong, told]


@pytest.mark.parametrize("ranks", RANKS)
def test_diloco_is_the_papers_algorithm(ranks, tmp_path):
    results = on_ranks(ranks, diloco_on_ranks, tmp_path, 60)
    assert [wrong for wrong, _ in results] == [[]] * ranks
    assert all(told == results[0][1] for _, told in results)
    told = results[0][1]
    assert told[0] == "`fragments` must be at most the 2 arrays, got 3. Use 2 or fewer."
    assert told[-1] == "`begin` must be called with the same arrays before, got 0."
    if ranks > 1:
        assert "step=1" in told[1]
        assert "float64(3,) float64(3,) float64(3,)" in told[2]
        assert "diloco(0.5" in told[3]


def keras_with_diloco():
    import keras
    import numpy as np
    from mpi4py import MPI

    from dlguide.parallel import local_sgd

    comm = MPI.COMM_WORLD
    keras.utils.set_random_seed(3 + comm.rank)
    layers = [keras.layers.Dense(8, "tanh"), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((6,)), *layers])
    random = np.random.default_rng(comm.rank)
    x = random.normal(size=(320, 6)).astype("f4")
    y = np.sin(x.sum(-1, keepdims=True))
    model.compile(keras.optimizers.AdamW(0.01), "mse", jit_compile=False)
    scheme = local_sgd.DiLoCo(0.7, 0.9, fragments=3, overlap=True)
    meets = local_sgd.callback(scheme, comm, every_steps=4)
    history = model.fit(x, y, 10, epochs=4, verbose=0, callbacks=[meets])
    digest = b"".join(w.tobytes() for w in model.get_weights())
    return [history.history["loss"], len(set(comm.allgather(digest)))]


def test_streaming_trains_a_keras_model(tmp_path):
    for losses, different in on_ranks(2, keras_with_diloco, tmp_path, 120):
        assert losses[-1] < 0.7 * losses[0]
        assert different == 1
