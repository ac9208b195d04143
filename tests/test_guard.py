"""The guard looks before the second update, however many passes make one."""

from __future__ import annotations

import pytest
from on_ranks import on_ranks

pytestmark = pytest.mark.timeout(240)


def broadcast_after_the_first_update(passes):
    import keras
    import numpy as np

    import dlguide.horovod as hvd

    hvd.init()
    weight = keras.Variable(np.full(3, 1.0 + hvd.rank()), dtype="float32", name="w")
    sgd = keras.optimizers.SGD(0.5, gradient_accumulation_steps=passes if passes > 1 else None)
    sgd = hvd.DistributedOptimizer(sgd)
    gradient = np.full(3, 1.0 + hvd.rank(), np.float32)
    for _ in range(passes):
        sgd.apply([gradient], [weight])
    hvd.broadcast_variables([weight], root_rank=0)
    for _ in range(passes):
        sgd.apply([gradient], [weight])
    return np.asarray(weight).tolist()


def fits_with_unequal_batches(batches, callback):
    import keras
    import numpy as np
    from horovod_cases import error_of

    import dlguide.horovod as hvd

    hvd.init()
    net = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    net.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    rows = batches[hvd.rank()]
    first = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)] if callback else []
    if not callback:
        hvd.broadcast_global_variables(0, model=net)
    ways = {"batch_size": 1, "verbose": 0, "callbacks": first}
    refused = error_of(lambda: net.fit(np.ones((rows, 2)), np.ones(rows), **ways))
    equal = error_of(lambda: net.fit(np.ones((rows, 2)), np.ones(rows), steps_per_epoch=8, **ways))
    return [refused, equal]


@pytest.mark.parametrize("callback", [True, False])
def test_unequal_numbers_of_batches_are_refused_with_ranks_and_numbers(tmp_path, callback):
    arguments = {"batches": [10, 8], "callback": callback}
    (refused, equal), other = on_ranks(2, fits_with_unequal_batches, tmp_path, **arguments)
    assert [refused, equal] == other
    assert refused.startswith(
        "RanksDifferError: The number of batches per epoch must be the same on"
    )
    assert "got rank 0: 10, rank 1: 8." in refused
    assert "`steps_per_epoch=8`" in refused
    assert equal == "no error"


@pytest.mark.parametrize("passes", [1, 3])
def test_a_broadcast_after_the_first_update_is_in_time(tmp_path, passes):
    mean = (1.0 + 2.0) / 2
    expected = [1.0 - 0.5 * 2 * mean] * 3
    assert on_ranks(2, broadcast_after_the_first_update, tmp_path, passes=passes) == [expected] * 2
