"""What our allreduce in shared memory would bring to a step of a large net under Horovod.

    python benchmarks/horovod_shared_memory.py
    python benchmarks/horovod_shared_memory.py --net resnet50 --starts 5

Two ranks of one thread each train the same net from the same weights on the same batches, each step
in three ways, in turns: Horovod's tape; the same tape, whose gradients are summed by
`collectives.allreduce` in a window of shared memory, after all are there; and without any exchange,
so that the part of the step that an exchange costs is known. The weights of the first two must
agree. The ranks start anew several times with each of two fusion thresholds, Horovod's default of
64 MiB and 4 MiB, since setting it is what one would try first; and once as one process with as many
threads and both ranks' images, which exchanges nothing. Printed are the steps, the ratios turn by
turn with quartiles, and the bytes.
"""

from __future__ import annotations

import argparse
import sys

import cloudpickle
import numpy as np
from report import report

from dlguide.cluster import Cluster
from dlguide.measure import Timing

THRESHOLDS = (64, 4)  # MiB
NETS = {"mlp": (64, 2048), "resnet50": (8, (64, 64, 3))}  # images per rank, shape of one


def large_mlp(keras):
    """25 million parameters, most of them in two layers."""
    units = [keras.layers.Dense(4096, "relu") for _ in range(2)]
    return keras.Sequential([keras.Input((2048,)), *units, keras.layers.Dense(10)])


class InSharedMemory:
    """Sums the gradients of a tape in a window; takes the place of a compression."""

    def __init__(self, comm):
        self.comm, self.window = comm, None

    def sum_arrays(self, grads, _ranks, _keys):
        """See `dlguide.parallel.compression.Compressor.sum_arrays`."""
        from dlguide import collectives

        if self.window is None:
            self.window = collectives.shared_array(self.comm, sum(each.size for each in grads))
        np.concatenate([each.ravel() for each in grads], out=np.asarray(self.window))
        collectives.allreduce(self.window, self.comm, "sum", "shared", None, False)
        total = np.array(self.window)
        ends = np.cumsum([each.size for each in grads])[:-1]
        parts = np.split(total, ends)
        return [part.reshape(each.shape) for part, each in zip(parts, grads, strict=True)]


def measured(net, turns, steps):
    """Seconds of a step in each way and turn, and the bytes of the gradients."""
    from time import perf_counter

    import keras
    import tensorflow as tf
    from mpi4py import MPI

    import dlguide.horovod as hvd

    hvd.init()
    comm, (batch, shape) = MPI.COMM_WORLD, NETS[net]
    batch *= 2 // comm.size
    keras.utils.set_random_seed(0)
    made = {
        "mlp": large_mlp,
        "resnet50": lambda keras: keras.applications.ResNet50(
            weights=None, input_shape=shape, classes=10, classifier_activation=None
        ),
    }[net](keras)
    variables, first = made.trainable_variables, made.get_weights()
    random = np.random.default_rng(comm.rank)
    x = tf.constant(random.standard_normal((batch, *np.atleast_1d(shape)), dtype="f4"))
    y = tf.constant(random.integers(0, 10, batch))
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def step_with(wrap):
        @tf.function
        def step():
            with wrap(tf.GradientTape()) as tape:
                loss = loss_of(y, made(x, training=True))
            for variable, grad in zip(variables, tape.gradient(loss, variables), strict=True):
                variable.assign_sub(1e-3 * grad)
            return loss

        return step

    shared = InSharedMemory(comm)
    ways = {
        "no exchange": step_with(lambda tape: tape),
        "Horovod": step_with(hvd.DistributedGradientTape),
        "shared memory": step_with(
            lambda tape: hvd.DistributedGradientTape(tape, compression=shared)
        ),
    }
    if comm.size == 1:
        ways = {"no exchange": ways["no exchange"]}
    seconds, weights = {name: [] for name in ways}, {}
    for turn in range(turns + 1):  # the first warms up
        for name in np.random.default_rng(turn).permutation(list(ways)):
            made.set_weights(first)
            ways[name]()
            comm.Barrier()
            start = perf_counter()
            for _ in range(steps):
                ways[name]()
            took = comm.allreduce((perf_counter() - start) / steps, MPI.MAX)
            if turn:
                seconds[name].append(took)
            else:
                weights[name] = [each.numpy() for each in variables]
    for a, b in zip(*[weights[name] for name in list(ways)[1:]], strict=True):
        assert np.abs(a - b).max() <= 1e-4 * np.abs(a).max(), "the weights differ"
    nbytes = sum(4 * int(np.prod(each.shape)) for each in variables)
    hvd.shutdown()
    return seconds, nbytes


def main() -> None:
    """Print a line for each way and the ratio."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--net", choices=NETS, help="one net only")
    options.add_argument("--starts", type=int, default=2, help="of the ranks, each threshold")
    options.add_argument("--turns", type=int, default=3, help="of a start, interleaved")
    options.add_argument("--steps", type=int, default=5, help="of a turn")
    chosen = options.parse_args()
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    for net in [chosen.net] if chosen.net else NETS:
        found, alone = {threshold: {} for threshold in THRESHOLDS}, []
        for start in range(chosen.starts):
            for threshold in np.random.default_rng(start).permutation([0, *THRESHOLDS]):
                ranks = 2 if threshold else 1
                set_to = {"HOROVOD_FUSION_THRESHOLD": str(threshold << 20)}
                with Cluster(ranks=ranks, magics=False, environment=set_to) as cluster:
                    seconds, nbytes = cluster.run(measured, net, chosen.turns, chosen.steps)[0]
                for name, each in seconds.items():
                    (found[threshold].setdefault(name, []) if threshold else alone).extend(each)
        what = f"{net}, {nbytes / 1e6:.0f} MB of gradients"
        print(f"{what}; one process: a step {Timing(tuple(alone))}")
        for threshold, seconds in found.items():
            for name, each in seconds.items():
                print(f"{threshold:>4} MiB, {name:>14}: a step {Timing(tuple(each))}")
            none, one, other = (np.array(each) for each in seconds.values())
            exposed = np.median(1 - none / one)
            report(
                f"Horovod's step, fusion up to {threshold} MiB / with our allreduce, {what}, "
                f"exchange {100 * exposed:.0f} % of the step",
                one / other,
                seconds=list(seconds.values()),
            )
        report(
            f"step of 2 ranks with our allreduce / of one process with 2 threads, {what}",
            other / np.array(alone),
            seconds=[other, alone],
        )


if __name__ == "__main__":
    main()
