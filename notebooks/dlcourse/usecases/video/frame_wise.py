"""A 3-D convolution that is also fast where TensorFlow computes without oneDNN.

TensorFlow's own gradients of a 3-D convolution with strides take more than a hundred times as
long as the convolution itself; those of a 2-D convolution do not.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from dlguide.machine.onednn_switch import in_force


class FrameWiseConv3D(keras.layers.Conv3D):
    """`Conv3D` with padding "same", which without oneDNN is a sum of 2-D convolutions.

    A kernel of k frames is k kernels of one frame each. The i-th one sees the frames i, i + s,
    i + 2 s, ... where s is the stride in time, and the results are added:

        y[t] = sum over i of conv2d(x[s t + i], kernel[i])

    Weights and result are those of `Conv3D`, up to rounding.
    """

    def convolution_op(self, inputs: Any, kernel: Any) -> Any:
        """Convolve, without bias and activation."""
        if in_force():
            return super().convolution_op(inputs, kernel)
        (length, *_), (stride, *strides) = self.kernel_size, self.strides
        frames = ops.unstack(inputs, axis=1)
        steps = -(-len(frames) // stride)
        missing = max((steps - 1) * stride + length - len(frames), 0)
        empty = [ops.zeros_like(frames[0])]
        frames = empty * (missing // 2) + frames + empty * (missing - missing // 2)
        seen = (frames[i : i + stride * (steps - 1) + 1 : stride] for i in range(length))
        parts = (
            ops.conv(ops.concatenate(those, axis=0), kernel[i], strides, "same")
            for i, those in enumerate(seen)
        )
        return ops.stack(ops.split(sum(parts), steps, axis=0), axis=1)
