"""The guard looks before the second update, however many backward passes make one."""

from __future__ import annotations

import pytest
from on_ranks import on_ranks

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(240)]


def broadcast_after_the_first_update(passes):
    import keras
    import numpy as np

    import dlguide.horovod as hvd

    hvd.init()
    weight = keras.Variable(np.full(3, 1.0 + hvd.rank()), dtype="float32", name="w")
    sgd = hvd.DistributedOptimizer(keras.optimizers.SGD(0.5), backward_passes_per_step=passes)
    gradient = np.full(3, 1.0 + hvd.rank(), np.float32)
    for _ in range(passes):
        sgd.apply([gradient], [weight])
    hvd.broadcast_variables([weight], root_rank=0)
    for _ in range(passes):
        sgd.apply([gradient], [weight])
    return np.asarray(weight).tolist()


@pytest.mark.parametrize("passes", [1, 3])
def test_a_broadcast_after_the_first_update_is_in_time(tmp_path, passes):
    mean = (1.0 + 2.0) / 2
    expected = [1.0 - 0.5 * 2 * passes * mean] * 3
    assert on_ranks(2, broadcast_after_the_first_update, tmp_path, passes=passes) == [expected] * 2
