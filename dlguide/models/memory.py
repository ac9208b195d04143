"""Predict the memory that training a net takes: weights, gradients, optimizer, activations."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from numbers import Integral
from typing import TYPE_CHECKING

from dlguide.errors import require, require_count, require_known
from dlguide.models.building import build
from dlguide.models.counting import itemsize
from dlguide.models.kept import backward_peak, kept, record

if TYPE_CHECKING:
    import keras

# Numbers that each optimizer stores for a trained parameter.
_SLOTS = {
    **{"sgd": 0, "momentum": 1, "adagrad": 1, "rmsprop": 1, "lars": 1},
    **{"adam": 2, "adamw": 2, "lamb": 2},
}
_PRECISIONS = ("float32", "float64", "mixed_bfloat16", "mixed_float16")


@dataclass(frozen=True)
class Memory:
    """Bytes that one rank needs to train a net, predicted.

    `weights` with the statistics of batch normalisation and, in mixed precision, the 16-bit
    copies; `gradients`; `optimizer` for its state; `activations` that the forward pass keeps for
    the backward pass; `working` for what the backward pass needs on top of them at its fullest
    moment. The first three do not depend on the batch, the last two grow in proportion to it.
    """

    batch: int
    weights: int
    gradients: int
    optimizer: int
    activations: int
    working: int

    @property
    def fixed(self) -> int:
        """What no smaller batch can save: weights, gradients, optimizer."""
        return self.weights + self.gradients + self.optimizer

    @property
    def total(self) -> int:
        """All of it; the framework itself and the data come on top."""
        return self.fixed + self.activations + self.working

    def largest_batch(self, nbytes: int) -> int:
        """Tell how large a batch fits into a memory."""
        require_count(nbytes, "nbytes", least=0)
        growing = self.activations + self.working
        then = "Give `models.memory` a net instead of a number of parameters."
        require(growing > 0, "activations", "be known", growing, then)
        return max(0, (nbytes - self.fixed) * self.batch // growing)

    def __str__(self) -> str:
        """Write one line a part, in MB."""
        parts = ("weights", "gradients", "optimizer", "activations", "working", "total")
        lines = [f"{name:12} {getattr(self, name) / 1e6:12,.2f} MB" for name in parts]
        return "\n".join([f"training with a batch of {self.batch}", *lines])


def memory(
    net: keras.Model | str | int,
    batch: int,
    optimizer: str = "adam",
    precision: str | None = None,
) -> Memory:
    """Predict the memory that one training step of a net takes on one rank.

    With P trained parameters of w bytes and an optimizer of s numbers for each:

        weights     = P w         (and the statistics of batch normalisation)
        gradients   = P w
        optimizer   = P w s       (s = 0 for SGD, 1 with momentum, 2 for Adam)
        activations = batch * (bytes that the backward pass needs of one image)
        working     = peak of the backward pass above `activations`

    With Adam in float32 that is 16 bytes a parameter before the first image: 131 million
    parameters take 2.1 GB, which the guide prints beside its generator. In mixed precision
    weights, gradients and optimizer stay in float32, kernels have 16-bit copies and activations
    have 2 bytes, but the inputs of batch normalisation are kept in float32.

    What the backward pass needs, as TensorFlow keeps it: a convolution or dense layer its
    input; ReLU its output; maximum pooling both; batch normalisation its input; dropout one byte
    for each element; addition, concatenation, padding, averages nothing. Layer normalisation
    keeps its input and as many scales, a recurrent layer gates and states of every step,
    attention its queries, keys, values and one weight for each head and pair of positions; what
    these two need inside while they go backward is not in `working`. What two layers need is
    kept once, such as the output of ReLU that is the input of the next convolution. `working`
    follows the gradients backward: what is still kept, the gradients at the output and inputs of
    the layer, and two temporary arrays in batch normalisation.

    `activations` agree with the arrays that TensorFlow's graph keeps. The peak that one image
    more really adds was measured for four nets (tests/benchmarks/memory_against_measured.py):
    with oneDNN and one inter-op thread it was 1.2 to 1.4 times `activations` + `working` in
    float32, and 1.03 times for ResNet-50 without oneDNN. With two inter-op threads, which work
    on several layers at once, up to 1.9 times. So it is a lower bound: leave room above it.

    Leaves out the framework itself (0.5 GB of TensorFlow), the data in its pipeline, buffers for
    fusion of an allreduce, scratch of kernels, and what the allocator does not give back.

    Args:
        net: a functional or sequential Keras model, a name that `build` takes, or a number of
            parameters alone (then activations and working are 0).
        batch: images that this rank trains on at once (count).
        optimizer: "sgd", "momentum", "adagrad", "rmsprop", "lars", "adam", "adamw" or "lamb".
        precision: "float32", "float64", "mixed_bfloat16" or "mixed_float16"; None takes that of
            the model, and float32 for a name or a number.

    Returns:
        Memory: bytes of each part; `print` it for a table.

    Raises:
        ValueError: when a name is unknown, a number out of range, the model has no graph, or
            its layers have another precision than `precision`.

    Source:
        PRACE Best Practice Guide Deep Learning (2019), sections 3.4 and 4.5, Tables 2 and 3.

    >>> memory(131_000_000, batch=1).fixed
    2096000000
    """
    require_count(batch, "batch")
    slots = _SLOTS[require_known(optimizer, _SLOTS, "optimizer")]
    if precision is not None:
        require_known(precision, _PRECISIONS, "precision")
    if isinstance(net, Integral):
        trained = require_count(net, "net") * (8 if precision == "float64" else 4)
        copies = 2 * net if precision and precision.startswith("mixed") else 0
        return Memory(batch, trained + copies, trained, trained * slots, 0, 0)
    model = build(net, dtype=precision or "float32") if isinstance(net, str) else net
    own = _precision(model)
    then = "Build the model with this dtype policy."
    require(
        precision in (None, own), "precision", f"be {own} as the model's layers", precision, then
    )
    calls = record(model)
    trained = sum(_nbytes(weight) for weight in model.trainable_weights)
    copies = 0
    if own.startswith("mixed"):
        kernels = [weight for weight in model.weights if weight.name.endswith("kernel")]
        copies = sum(2 * prod(kernel.shape) for kernel in kernels)
    activations = sum(kept(calls).values())
    return Memory(
        batch=batch,
        weights=sum(_nbytes(weight) for weight in model.weights) + copies,
        gradients=trained,
        optimizer=trained * slots,
        activations=batch * activations,
        working=batch * max(0, backward_peak(calls) - activations),
    )


def _nbytes(weight: keras.Variable) -> int:
    return prod(weight.shape) * itemsize(weight.dtype)


def _precision(model: keras.Model) -> str:
    """Name the dtype policy of a model's layers; that of the mixed ones if there are any."""
    names = {layer.dtype_policy.name for layer in model.layers if layer.weights}
    mixed = sorted(name for name in names if name.startswith("mixed"))
    return (mixed or sorted(names) or ["float32"])[0]
