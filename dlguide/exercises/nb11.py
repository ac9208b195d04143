"""Checks of the exercises of notebook 11: costs of a layer, its way back, fields, ranks."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from dlguide.exercises import answered, expect, expect_close, expect_function, near
from dlguide.exercises.matching import expect_reason
from dlguide.exercises.on_ranks import results

# side, channels, filters, kernel, stride, padding
LAYERS = {
    "the first layer of the MNIST net": (28, 1, 32, 5, 1, 0),
    "its second layer": (12, 32, 64, 5, 1, 0),
    "a layer of VGG-16": (224, 64, 64, 3, 1, 1),
    "the first layer of AlexNet": (224, 3, 64, 11, 4, 2),
    "the first layer of ResNet-50": (224, 3, 64, 7, 2, 3),
}
WHY = {  # 11-2: what speaks against the other reasons
    "A": "Compute both fields: `field([(3, 1), (3, 1)])` and `field([(5, 1)])`.",
    "C": "With padding both keep the side of the image, and so all of its places.",
    "D": "Between the two layers stands one more map, which training must keep.",
}
VGG16 = (3, 3, 2, 3, 3, 2, *(3, 3, 3, 2) * 3)  # kernels; those of 2 are its poolings


def exercise_11_1(layer: Callable[..., Any]) -> str:
    """Check the shape and the cost of a convolution.

    Args:
        layer: called with side, channels, filters, kernel, stride, padding; returns the side of
            the output, the weights and the multiply-adds of one image.

    Returns:
        str: what it means.
    """
    expect_function(layer)
    for name, case in LAYERS.items():
        side, channels, filters, kernel, stride, padding = case
        came = answered(layer(*case))
        expect(np.shape(came) == (3,), "three numbers: side, weights, multiply-adds", came)
        out = (side + 2 * padding - kernel) // stride + 1
        hint = "Padding on both edges; a window that does not fit any more is left out."
        expect(came[0] == out, f"the side of the output of {name}", came[0], hint)
        weights = (kernel * kernel * channels + 1) * filters
        hint = "Each filter has k x k weights for every channel, and one bias. Places do not count."
        expect(came[1] == weights, f"the weights of {name}", came[1], hint)
        work = out * out * kernel * kernel * channels * filters
        hint = "At every place of the output, each weight but the biases is used once."
        expect(came[2] == work, f"the multiply-adds of {name}", came[2], hint)
    return f"ResNet-50 begins with {weights:,} weights and {work:,} multiply-adds."


def exercise_11_2(field: Callable[..., Any], why: str) -> str:
    """Check the receptive field of a stack of layers, and why VGG stacks small kernels.

    Args:
        field: called with a list of (kernel, stride) from the image on; returns pixels.
        why: the letter of the reason.

    Returns:
        str: what it means.
    """
    expect_function(field)
    vgg = [(kernel, 2 if kernel == 2 else 1) for kernel in VGG16]
    cases = [[(5, 1)], [(3, 1), (3, 1)], [(5, 1), (2, 2), (5, 1), (2, 2)], [(7, 2), (3, 2)], vgg]
    for layers in cases:
        pixels, step = 1, 1
        for kernel, stride in layers:
            pixels += (kernel - 1) * step
            step *= stride
        came = answered(field(list(layers)))
        hint = "A layer's own stride spreads those after it, not itself. Begin with 1 pixel."
        if near(came, 1 + sum(kernel - 1 for kernel, _ in layers)):
            hint = "Behind a stride a step is several pixels: who multiplies the strides?"
        elif near(came, sum(kernel for kernel, _ in layers)):
            hint = "Begin with 1 pixel; a layer adds k - 1 steps, not k."
        expect(came == pixels, f"the pixels that {layers} see", came, hint)
    expect_reason(why, "B", WHY, "the reason for two small kernels")
    return (
        f"Two 3 x 3 layers see 5 pixels with 18 C weights a filter, one 5 x 5 with 25 C, and a "
        f"ReLU less. Before its dense layers VGG-16 sees {pixels} of 224 pixels."
    )


def exercise_11_3(efficiency: Callable[..., Any]) -> str:
    """Check the model of how well a net scales.

    Args:
        efficiency: called with the flops of one image, the bytes of the gradient, the batch of a
            rank, the ranks, flops/s of a rank and bytes/s of a link; returns 0 to 1.

    Returns:
        str: what it means.
    """
    expect_function(efficiency)
    nets = {"VGG-16": (93e9, 553e6), "ResNet-101": (45e9, 178e6)}
    speeds = (6e12, 25e9 / 8)
    for name, (flops, nbytes) in nets.items():
        for batch, ranks in ((64, 1), (64, 2), (64, 128), (256, 128)):
            came = answered(efficiency(flops, nbytes, batch, ranks, *speeds))
            work_s = batch * flops / speeds[0]
            exchange_s = 2 * (ranks - 1) / ranks * nbytes / speeds[1]
            right = work_s / (work_s + exchange_s)
            hint = "Seconds of work over seconds of a step."
            if ranks == 1:
                hint = "One rank exchanges nothing: its efficiency is 1."
            elif near(came, work_s / (work_s + batch * exchange_s)):
                hint = "The work is that of the whole batch, not of one image."
            elif near(came, work_s / (work_s + exchange_s / 2)):
                hint = "The gradient goes over a link nearly twice: 2 (p - 1) / p times."
            text = f"the efficiency of {name} on {ranks} ranks with a batch of {batch}"
            expect_close(came, right, text, hint, 1e-9)
    ratios = [nbytes / flops for flops, nbytes in nets.values()]
    return (
        f"VGG-16 needs {ratios[0] / ratios[1]:.1f} times the batch of ResNet-101. But activations "
        "need memory, and a larger global batch is another training (notebook 25)."
    )


def exercise_11_4(backward: Callable[..., Any]) -> str:
    """Check the gradients of a convolution, against the sums of all their products.

    Args:
        backward: called with images, kernels and the gradient of the output; returns the
            gradients of kernels and images.

    Returns:
        str: what it means.
    """
    expect_function(backward)
    random = np.random.default_rng(4)
    for batch, height, width, k, channels, filters in ((1, 4, 5, 1, 1, 1), (2, 6, 7, 3, 2, 4)):
        images = random.normal(size=(batch, height, width, channels))
        kernels = random.normal(size=(k, k, channels, filters))
        above = random.normal(size=(batch, height - k + 1, width - k + 1, filters))
        of_kernels, of_images = np.zeros_like(kernels), np.zeros_like(images)
        for y, x in np.ndindex(above.shape[1:3]):
            window = slice(None), slice(y, y + k), slice(x, x + k)
            of_kernels += np.tensordot(images[window], above[:, y, x], axes=(0, 0))
            of_images[window] += np.einsum("bf,ijcf->bijc", above[:, y, x], kernels)
        came = answered(backward(images.copy(), kernels.copy(), above.copy()))
        two = isinstance(came, tuple | list) and len(came) == 2
        expect(two, "two arrays, for kernels and for images", f"{type(came).__name__}")
        shapes = [np.shape(each) for each in came]
        expect(
            shapes == [kernels.shape, images.shape],
            f"the shapes {kernels.shape} and {images.shape}",
            f"{shapes}",
            "The gradient of an array has its shape, and the kernels' one comes first.",
        )
        hint = "Sum over all images, a mean is another gradient: the loss is not divided here."
        whole = np.allclose(np.asarray(came[0]) * batch, of_kernels) and batch > 1
        expect(not whole, "the sum over the images of the batch", "their mean", hint)
        hint = "A weight meets a pixel at every place: multiply with `above` there, add up."
        expect_close(came[0], of_kernels, "the gradient of the kernels", hint, 1e-6)
        hint = "A pixel gets `above` times the weight that touched it, from every place it was in."
        expect_close(came[1], of_images, "the gradient of the images", hint, 1e-6)
    return "Both are convolutions: so training costs about three times as much as inference."


def exercise_11_5(strip: Callable[..., Any], cluster: Any) -> str:
    """Check on real ranks that strips of one image are convolved as the whole.

    Args:
        strip: called with the communicator, the rank's rows and the kernel; returns its rows of
            the result.
        cluster: the learner's cluster.

    Returns:
        str: what it means.
    """
    expect_function(strip)
    ranks, random = cluster.ranks, np.random.default_rng(5)
    for k in (3, 5):
        # another height on each rank, and another kernel on each of its sides
        heights = [k // 2 + 1 + (2 * rank) % 3 for rank in range(ranks)]
        ends = np.cumsum([0, *heights])
        image, kernel = random.normal(size=(ends[-1], 6)), random.normal(size=(k, k))
        parts = [image[begin:end] for begin, end in pairwise(ends)]
        came = results(cluster, strip, [(part, kernel) for part in parts])
        shapes, wanted = [np.shape(each) for each in came], [part.shape for part in parts]
        hint = "The result of a rank has the shape of its rows."
        expect(shapes == wanted, f"the shapes {wanted}", f"{shapes}", hint)
        right = _same(image, kernel)
        joined = np.concatenate([np.asarray(each, float) for each in came])
        alone = np.concatenate([_same(part, kernel) for part in parts])
        hint = "Every rank works as if there were zeros behind the seam: exchange the halo."
        seams = ranks > 1 and np.allclose(joined, alone)
        expect(not seams, "the convolution of the whole image", "one of each strip", hint)
        turned = _same(image, kernel[::-1, ::-1])
        hint = "Do not flip the kernel."
        expect(not np.allclose(joined, turned), "the kernel as it is", "a flipped one", hint)
        ring = np.concatenate([image[-(k // 2) :], image, image[: k // 2]])
        hint = "The first and the last rank have zeros outside, not each other's rows."
        closed = np.allclose(joined, _same(ring, kernel)[k // 2 : -(k // 2)])
        expect(not closed, "zeros around the image", "the image closed to a ring", hint)
        hint = "Which rows go up, which go down? Your last rows are the halo of the next rank."
        expect_close(joined, right, f"the convolution with a kernel of {k} x {k}", hint, 1e-9)
    if ranks == 1:
        return "But one rank has no seams: try it on two."
    return (
        "A halo for each layer, or one of ten times the rows once, with work done twice: fewer "
        "messages against more arithmetic. Notebook 23 splits nets in other ways."
    )


def _same(image: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """Convolve an image with zeros around it; the result has its shape."""
    k = len(kernel)
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(image, k // 2), (k, k))
    return np.einsum("yxij,ij->yx", windows, kernel)
