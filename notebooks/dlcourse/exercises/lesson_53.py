"""Exercises of lesson 53: buckets, layouts, unequal parts, causes of symptoms."""

from functools import partial

import numpy as np

from dlcourse.exercises.engine import Exercise, Letters

MNIST_CNN = [40, 5120, 512, 524288, 204800, 256, 3200, 128]  # bytes, as they become ready
KERNELS = [
    (np.arange(height * width * channels * outputs).reshape(-1, outputs), height, width, channels)
    for height, width, channels, outputs in ((2, 3, 4, 5), (4, 4, 64, 7), (1, 1, 6, 2))
]


def buckets_of(nbytes, cap):
    found = [0]
    for size in nbytes:
        if found[-1] >= cap:
            found.append(0)
        found[-1] += size
    return found


def at_most(nbytes, cap):
    """Horovod's rule: a bucket is closed before it exceeds the cap."""
    found = []
    for size in nbytes:
        if found and found[-1] + size <= cap:
            found[-1] += size
        else:
            found.append(size)
    return found


def for_pytorch(kernel, height, width, channels, axes=(3, 2, 0, 1)):
    outputs = kernel.shape[1]
    return kernel.reshape(height, width, channels, outputs).transpose(axes).reshape(outputs, -1)


def corrected(comm, rows, average):
    return average(rows.sum(axis=0) * comm.size / comm.allreduce(len(rows)))


def call_corrected(answer, comm, rows):
    """The answer's mean, and whether `average` was called once."""
    calls = []

    def average(array):
        calls.append(1)
        return comm.allreduce(np.asarray(array, float)) / comm.size

    return answer(comm, rows, average), len(calls) == 1


def parts(ranks):
    counts = [4] * ranks, range(3, 4 * ranks + 3, 4), [0] + [5] * (ranks - 1)
    return [
        [(np.arange(3.0 * count).reshape(-1, 3) ** 2 + rank,) for rank, count in enumerate(each)]
        for each in counts
    ]


def of_all(inputs, divide=1, once=True):
    whole = np.concatenate([rows for (rows,) in inputs]).mean(axis=0)
    return [(whole / divide, once)] * len(inputs)


def mean_of_means(inputs):
    means = [rows.mean(axis=0) if len(rows) else 0 * rows.sum(axis=0) for (rows,) in inputs]
    return [(sum(means) / len(means), True)] * len(means)


EXERCISES = {
    "53-1": Exercise(
        buckets_of,
        cases=[([10] * 5, 20), ([40, 40, 40, 200, 8], 100), ([10, 20, 30], 1000),
               ([10, 20, 30], 1), ([300, 10, 10], 100), (MNIST_CNN, 200_000)],
        hint="A bucket is closed once it holds *at least* the cap.",
        mistakes={
            "A bucket may be larger than the cap; only the last may be smaller.": at_most,
            "The last bucket is sent too, however little it holds.":
                lambda nbytes, cap: [each for each in buckets_of(nbytes, cap) if each >= cap],
            "No bucket is empty.":
                lambda n, cap: buckets_of(n, cap) + [0] * (buckets_of(n, cap)[-1] >= cap),
            "In the order of sending: ready first, sent first.": lambda *a: buckets_of(*a)[::-1],
        },
        remark=f"With a cap of 200000 bytes, {sum(MNIST_CNN[:4]) / sum(MNIST_CNN):.0%} of all bytes"
        " of this lesson's net are in the first message: nothing smaller can begin before it."),
    "53-2": Exercise(
        for_pytorch, cases=KERNELS,
        hint="Turn the rows into height x width x channels first; then move the channels.",
        mistakes={
            "PyTorch keeps a dense kernel as outputs x inputs.": lambda kernel, *sizes: kernel,
            "A transpose alone leaves the inputs in Keras' order, channels fastest.":
                lambda kernel, *sizes: kernel.T,
            "Height and width have changed places.": partial(for_pytorch, axes=(3, 2, 1, 0)),
        },
        remark="With 1 x 1 pixels a transpose is enough: that case alone would prove little."),
    "53-3": Exercise(
        corrected, ranks=(2, 3), call=call_corrected, cases=parts, serial=of_all,
        hint="Add up your rows; multiply by the ranks, divide by the samples of *all* ranks.",
        mistakes={
            "All ranks must call `average` equally often, here once.": partial(of_all, once=False),
            "The mean of the ranks' means: a rank with few samples weighs too much.": mean_of_means,
            "`average` divides by the number of ranks: your part must be that much larger.":
                lambda inputs: of_all(inputs, divide=len(inputs)),
        },
        remark="So the loss is scaled before the backward pass, and nothing after it must change."),
    "53-4": Letters({
        "images/s": ("C", "Its first batch took twice as long as its rival's, no later one did."),
        "hangs": ("E", "The addresses that it reads were written by processes that have ended."),
        "last step": ("A", "Which mean does DistributedDataParallel take?"),
        "memory": ("F", "What does one GPU keep that the helpers do not?"),
        "early": ("B", "When may a bucket be sent?"),
        "loader": ("D", "Divide before you compare: how many processes read for one GPU?"),
    }, "Three of them are in the thesis' scripts and logs, and none of these is the exchange."),
}  # fmt: skip
