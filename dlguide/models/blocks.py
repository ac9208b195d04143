"""The bodies of AlexNet, GoogLeNet and the residual nets, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# Columns of Table 1 in Szegedy et al. 2014: filters of the 1 x 1 branch, of the 3 x 3 one with
# its reduction, of the 5 x 5 one with its reduction, and of the projection after the pooling.
_INCEPTION = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}


class Layers:
    """Makes Keras layers of one dtype policy, with kernels that `draw` fills later."""

    def __init__(self, dtype: str):
        self.dtype = dtype

    def __call__(self, kind: str, x: Any, *args: Any, **options: Any) -> Any:
        """Make a layer and apply it to `x`, or to the list of tensors `x`."""
        import keras

        if kind in ("Conv2D", "Dense"):
            options.setdefault("kernel_initializer", "zeros")
        return getattr(keras.layers, kind)(*args, dtype=self.dtype, **options)(x)

    def convolve(self, x: Any, filters: int, kernel: int, name: str, **options: Any) -> Any:
        """Apply a convolution with bias and ReLU."""
        options.setdefault("padding", "same")
        return self("Conv2D", x, filters, kernel, activation="relu", name=name, **options)

    def normalised(self, x: Any, filters: int, kernel: int, strides: int, name: str) -> Any:
        """Apply a convolution without bias, then batch normalisation."""
        if strides > 1 and kernel > 1:
            # Padding "same" would pad one side only; the papers pad both.
            x = self("ZeroPadding2D", x, kernel // 2, name=f"{name}_pad")
            padding = "valid"
        else:
            padding = "same"
        x = self("Conv2D", x, filters, kernel, strides, padding, use_bias=False, name=name)
        return self("BatchNormalization", x, momentum=0.9, epsilon=1e-5, name=f"{name}_norm")


def resnet(make: Layers, x: Any, blocks: Sequence[int], stride_in_3x3: bool) -> Any:
    """Apply the body of a residual net of bottleneck blocks.

    Source:
        He et al. 2015 (arXiv:1512.03385), Table 1.
    """
    x = make.normalised(x, 64, 7, 2, "conv1")
    x = make("ReLU", x, name="conv1_relu")
    x = make("ZeroPadding2D", x, 1, name="pool1_pad")
    x = make("MaxPooling2D", x, 3, 2, name="pool1")
    for stage, count in enumerate(blocks, start=2):
        filters = 64 * 2 ** (stage - 2)
        for number in range(1, count + 1):
            name = f"conv{stage}_block{number}"
            strides = 2 if number == 1 and stage > 2 else 1
            first, second = (1, strides) if stride_in_3x3 else (strides, 1)
            shortcut = x
            if number == 1:
                shortcut = make.normalised(x, 4 * filters, 1, strides, f"{name}_0")
            x = make.normalised(x, filters, 1, first, f"{name}_1")
            x = make("ReLU", x, name=f"{name}_1_relu")
            x = make.normalised(x, filters, 3, second, f"{name}_2")
            x = make("ReLU", x, name=f"{name}_2_relu")
            x = make.normalised(x, 4 * filters, 1, 1, f"{name}_3")
            x = make("Add", [shortcut, x], name=f"{name}_add")
            x = make("ReLU", x, name=f"{name}_relu")
    return x


def alexnet(make: Layers, x: Any) -> Any:
    """Apply the convolutions of AlexNet in the version without groups.

    Source:
        Krizhevsky 2014 (arXiv:1404.5997), footnote 1; torchvision.models.alexnet.
    """
    x = make("ZeroPadding2D", x, 2, name="conv1_pad")
    x = make.convolve(x, 64, 11, "conv1", strides=4, padding="valid")
    x = make("MaxPooling2D", x, 3, 2, name="pool1")
    x = make.convolve(x, 192, 5, "conv2")
    x = make("MaxPooling2D", x, 3, 2, name="pool2")
    x = make.convolve(x, 384, 3, "conv3")
    x = make.convolve(x, 256, 3, "conv4")
    x = make.convolve(x, 256, 3, "conv5")
    return make("MaxPooling2D", x, 3, 2, name="pool5")


def googlenet(make: Layers, x: Any) -> Any:
    """Apply the body of GoogLeNet without auxiliary heads and response normalisation.

    Source:
        Szegedy et al. 2014 (arXiv:1409.4842), Table 1.
    """
    x = make.convolve(x, 64, 7, "conv1", strides=2)
    x = make("MaxPooling2D", x, 3, 2, "same", name="pool1")
    x = make.convolve(x, 64, 1, "conv2_reduce")
    x = make.convolve(x, 192, 3, "conv2")
    x = make("MaxPooling2D", x, 3, 2, "same", name="pool2")
    for name, (one, reduce3, three, reduce5, five, project) in _INCEPTION.items():
        if name in ("4a", "5a"):
            x = make("MaxPooling2D", x, 3, 2, "same", name=f"pool{name[0]}")
        branch1 = make.convolve(x, one, 1, f"{name}_1x1")
        branch3 = make.convolve(x, reduce3, 1, f"{name}_3x3_reduce")
        branch3 = make.convolve(branch3, three, 3, f"{name}_3x3")
        branch5 = make.convolve(x, reduce5, 1, f"{name}_5x5_reduce")
        branch5 = make.convolve(branch5, five, 5, f"{name}_5x5")
        pooled = make("MaxPooling2D", x, 3, 1, "same", name=f"{name}_pool")
        pooled = make.convolve(pooled, project, 1, f"{name}_project")
        x = make("Concatenate", [branch1, branch3, branch5, pooled], name=f"{name}_concat")
    return x
