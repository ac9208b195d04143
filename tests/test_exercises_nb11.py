"""Notebook 11's checks tick what is right on 1 to 4 ranks and say which usual mistake was made.

Tests dlguide.exercises.nb11.
"""

import numpy as np
import pytest
from exercise_parts import Parts

from dlguide import exercises, nets
from dlguide.exercises import nb11


def layer(side, channels, filters, kernel, stride, padding):
    out = (side + 2 * padding - kernel) // stride + 1
    weights = (kernel**2 * channels + 1) * filters
    return out, weights, out**2 * kernel**2 * channels * filters


def field(layers):
    pixels, step = 1, 1
    for kernel, stride in layers:
        pixels, step = pixels + (kernel - 1) * step, step * stride
    return pixels


def late_strides(layers):
    pixels, step = 1, 1
    for kernel, stride in layers:
        step *= stride
        pixels += (kernel - 1) * step
    return pixels


def efficiency(flops, nbytes, batch, ranks, flops_per_s, bytes_per_s):
    work_s = batch * flops / flops_per_s
    return work_s / (work_s + 2 * (ranks - 1) / ranks * nbytes / bytes_per_s)


def backward(images, kernels, above):
    of_kernels, of_images = np.zeros_like(kernels), np.zeros_like(images)
    height, width = above.shape[1:3]
    for i, j in np.ndindex(kernels.shape[:2]):
        touched = slice(None), slice(i, i + height), slice(j, j + width)
        of_kernels[i, j] = np.einsum("byxc,byxf->cf", images[touched], above)
        of_images[touched] += np.einsum("byxf,cf->byxc", above, kernels[i, j])
    return of_kernels, of_images


def flipped(images, kernels, above):
    return backward(images, kernels, above)[0], backward(images, kernels[::-1, ::-1], above)[1]


RIGHT = {"11-1": layer, "11-2": Parts((field, "B")), "11-3": efficiency, "11-4": backward}
EMPTY = {"11-2": [Parts((lambda layers: ..., "B")), Parts((field, ...))]}
WRONG = {
    "padding once": ("11-1", lambda n, c, f, k, s, p: layer(n - p, c, f, k, s, p), "both edges"),
    "no biases": (
        "11-1",
        lambda *case: (layer(*case)[0], layer(*case)[1] - case[2], layer(*case)[2]),
        "one bias",
    ),
    "work of the biases": (
        "11-1",
        lambda *case: (*layer(*case)[:2], layer(*case)[0] ** 2 * layer(*case)[1]),
        "but the biases",
    ),
    "work of one place": (
        "11-1",
        lambda *case: (*layer(*case)[:2], layer(*case)[1] - case[2]),
        "every place",
    ),
    "stride too early": ("11-2", Parts((late_strides, "B")), "own stride"),
    "no strides": (
        "11-2",
        Parts((lambda layers: 1 + sum(k - 1 for k, _ in layers), "B")),
        "who multiplies the strides",
    ),
    "kernels added": (
        "11-2",
        Parts((lambda layers: sum(k for k, _ in layers), "B")),
        "begin with 1",
    ),
    "small kernels see more": ("11-2", Parts((field, "A")), "Compute both fields"),
    "small kernels have fewer places": ("11-2", Parts((field, "C")), "With padding"),
    "small kernels need less memory": ("11-2", Parts((field, "D")), "one more map"),
    "small kernels are better": ("11-2", Parts((field, "better")), "A letter in quotes"),
    "one image": (
        "11-3",
        lambda f, n, b, p, s, w: efficiency(f, n, 1, p, s, w),
        "that of the whole batch",
    ),
    "bytes on one rank": (
        "11-3",
        lambda f, n, b, p, s, w: b * f / s / (b * f / s + 2 * n / w),
        "One rank exchanges nothing",
    ),
    "bytes once": (
        "11-3",
        lambda f, n, b, p, s, w: efficiency(f, n / 2, b, p, s, w),
        "nearly twice",
    ),
    "loss for efficiency": (
        "11-3",
        lambda f, n, b, p, s, w: 1 - efficiency(f, n, b, p, s, w) if p > 1 else 1,
        "Seconds of work",
    ),
    "kernel flipped": ("11-4", flipped, "weight that touched it"),
    "mean over the batch": (
        "11-4",
        lambda i, k, a: (backward(i, k, a)[0] / len(i), backward(i, k, a)[1]),
        "is not divided",
    ),
    "images first": ("11-4", lambda *given: backward(*given)[::-1], "kernels' one comes first"),
    "kernels zero": (
        "11-4",
        lambda i, k, a: (0 * k, backward(i, k, a)[1]),
        "at every place",
    ),
    "one array": ("11-4", lambda *given: backward(*given)[0], "two arrays"),
}


def test_oracle_of_costs_agrees_with_the_counting_of_keras_layers():
    import keras

    for side, channels, filters, kernel, stride, padding in nb11.LAYERS.values():
        net = keras.Sequential(
            [
                keras.Input((side, side, channels)),
                keras.layers.ZeroPadding2D(padding),
                keras.layers.Conv2D(filters, kernel, stride),
            ]
        )
        cost = nets.count(net)
        case = (side, channels, filters, kernel, stride, padding)
        assert layer(*case) == (net.output_shape[1], cost.parameters, cost.multiply_adds)


def test_gradients_are_those_of_keras():
    import keras
    import tensorflow as tf

    random = np.random.default_rng(0)
    images, kernels = random.normal(size=(2, 6, 7, 3)), random.normal(size=(3, 3, 3, 4))
    above = random.normal(size=(2, 4, 5, 4))
    with tf.GradientTape() as tape:
        given = tf.constant(images), tf.constant(kernels)
        tape.watch(given)
        loss = tf.reduce_sum(keras.ops.conv(*given, padding="valid") * above)
    of_images, of_kernels = tape.gradient(loss, given)
    came = backward(images, kernels, above)
    assert np.allclose(came[0], of_kernels)
    assert np.allclose(came[1], of_images)


def test_field_is_where_a_pixel_still_makes_a_difference():
    # a kernel of ones answers wherever a pixel is inside its window
    for layers in ([(3, 1), (3, 1)], [(5, 1), (2, 2), (3, 1)], [(3, 2), (3, 2), (2, 1)]):
        side = field(layers) + 4
        seen = []
        for pixel in range(side):
            line = np.eye(side)[pixel]
            for kernel, stride in layers:
                line = np.convolve(line, np.ones(kernel), "valid")[::stride]
            seen.append(line[0] != 0)
        assert sum(seen) == field(layers)


@pytest.fixture(scope="module", params=[1, 2, 3, 4])
def cluster_ranks(request):
    return request.param


def strip(comm, rows, kernel, fault=""):
    from mpi4py import MPI

    half = len(kernel) // 2
    ends = (comm.size - 1, 0) if fault == "ring" else (MPI.PROC_NULL, MPI.PROC_NULL)
    up = comm.rank - 1 if comm.rank > 0 else ends[0]
    down = comm.rank + 1 if comm.rank < comm.size - 1 else ends[1]
    first, last = rows[:half], rows[-half:]
    if fault == "swapped":
        first, last = last, first
    below = comm.sendrecv(first, dest=up, source=down)
    above = comm.sendrecv(last, dest=down, source=up)
    empty = np.zeros((half, rows.shape[1]))
    above, below = (empty if part is None or fault == "seams" else part for part in (above, below))
    wide = np.pad(np.concatenate([above, rows, below]), ((0, 0), (half, half)))
    if fault == "flipped":
        kernel = kernel[::-1, ::-1]
    windows = np.lib.stride_tricks.sliding_window_view(wide, kernel.shape)
    return np.einsum("yxij,ij->yx", windows, kernel)


def with_fault(fault):
    return lambda *arguments: strip(*arguments, fault=fault)


def test_strips_with_their_halos_are_ticked(cluster, capsys):
    ticked = exercises.check("11-5", strip, cluster)
    assert ticked, capsys.readouterr().out


@pytest.mark.parametrize(
    ("fault", "hint"),
    [
        ("seams", "exchange the halo"),
        ("swapped", "Which rows go up"),
        ("ring", "not each other's rows"),
        ("flipped", "Do not flip"),
    ],
)
def test_fault_of_a_strip_is_named_on_more_than_one_rank(fault, hint, cluster, capsys):
    ticked = exercises.check("11-5", with_fault(fault), cluster)
    out = capsys.readouterr().out
    if cluster.ranks == 1 and fault in ("seams", "swapped"):
        assert ticked
        assert "no seams" in out
    else:
        assert not ticked
        assert hint in out


def test_strip_that_is_missing_or_of_another_shape_is_told(cluster, capsys):
    assert not exercises.check("11-5", lambda *arguments: ..., cluster)
    assert "not answered yet" in capsys.readouterr().out
    assert not exercises.check("11-5", lambda comm, rows, kernel: rows[:1], cluster)
    assert "the shape of its rows" in capsys.readouterr().out
