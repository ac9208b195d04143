"""What lesson 91 stands on: links as slow as asked, bytes by receiver, times of a sharded step."""

import numpy as np
import pytest
from on_ranks import on_ranks

from dlcourse import sharded


def slow_messages(mbytes_per_s, nbytes):
    import time

    import numpy as np
    from mpi4py import MPI

    from dlcourse import sharded
    from dlguide.collectives import allgather_ring

    comm, found = MPI.COMM_WORLD, []
    for speed in (float("inf"), 1e6 * mbytes_per_s):
        link = sharded.link_comm(comm, speed)
        pairs = link.Dup().Split(comm.rank % 2, comm.rank)  # 0 and 2, 1 and 3
        comm.Barrier()
        start_s = time.perf_counter()
        for _ in range(5):
            allgather_ring(np.zeros(nbytes, "u1"), pairs)
        found.append([(time.perf_counter() - start_s) / 5, link.sent])
    return found


def test_a_link_is_as_slow_as_asked_and_names_the_receiver(tmp_path):
    everyone = on_ranks(4, slow_messages, tmp_path, mbytes_per_s=10, nbytes=400_000)
    for rank, ((_, fast), (slow_s, slow)) in enumerate(everyone):
        # half of the array in each message, which takes at least 20 ms
        assert fast == slow == [[(rank + 2) % 4, 200_000]] * 5
        assert slow_s > 0.018


def sharded_steps(prefetch):
    from mpi4py import MPI

    from dlcourse import sharded

    options = {"steps": 5, "width": 16, "depth": 3, "samples": 8}
    return sharded.timed_steps(MPI.COMM_WORLD, 1e6, prefetch, 0.02, **options)


@pytest.mark.parametrize("prefetch", [False, True])
def test_a_step_has_the_parts_of_stage_3_and_only_prefetching_gathers_beside_them(
    tmp_path, prefetch
):
    for steps in on_ranks(2, sharded_steps, tmp_path, prefetch=prefetch):
        assert len(steps) == 5
        for step in steps:
            spans = {}
            for kind, start_s, end_s in step["times"]:
                spans.setdefault(kind, []).append((start_s, end_s))
            parts = ("forward", "backward", "gather", "reduce-scatter")
            assert [len(spans[kind]) for kind in parts] == [3, 3, 6, 3]
            beside = [
                gather
                for gather in spans["gather"]
                for layer in spans["forward"] + spans["backward"]
                if gather[0] < layer[1] and layer[0] < gather[1]
            ]
            assert bool(beside) == prefetch


def test_sizes_are_those_of_the_arrays():
    for dtype in ("f4", "f8"):
        layers = sharded.text_layers(dtype, depth=2)
        weights = [layer.initial_weights() for layer in layers]
        assert sharded.nbytes(layers) == [sum(each.nbytes for each in of) for of in weights]
        inputs, labels = sharded.text_batch(5, 0, dtype)
        kept, values = inputs.nbytes, inputs
        for layer, own in zip(layers, weights, strict=True):
            values, _ = layer.forward(own, values)
            kept += values.nbytes
        assert kept == sharded.activation_nbytes(layers, 5)
        assert values.dtype == np.dtype(dtype)
        assert values.shape[1] > labels.max()
