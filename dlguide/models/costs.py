"""What a net costs for one image: plain numbers, layer by layer and in total."""

from __future__ import annotations

from dataclasses import dataclass

FLOAT32_BYTES = 4


@dataclass(frozen=True)
class LayerCost:
    """What one layer costs for one image.

    `output_shape` is that of one image. `parameters` are its weights without the `statistics`
    that batch normalisation keeps; `trainable` are the parameters that training changes.
    `multiply_adds` are those of convolutions and dense layers; `other_flops` is all other
    arithmetic. `training_multiply_adds` are those of one training step. `activation_bytes` is
    what the layer writes, `weight_bytes` what its weights take as they are stored.
    `bytes_moved` is what it must read and write at least: inputs, outputs and its share of the
    weights, which serve all images of a batch.
    """

    name: str
    kind: str
    output_shape: tuple[int, ...]
    parameters: int
    statistics: int
    trainable: int
    multiply_adds: int
    other_flops: int
    training_multiply_adds: int
    activation_bytes: int
    weight_bytes: int
    bytes_moved: float

    @property
    def flops(self) -> int:
        """Two for each multiply-add, and the others."""
        return 2 * self.multiply_adds + self.other_flops

    @property
    def flops_per_byte(self) -> float:
        """Arithmetic intensity: what decides between the two sides of a roofline."""
        return self.flops / self.bytes_moved if self.bytes_moved else 0.0


@dataclass(frozen=True)
class Cost:
    """What a net costs for one image: `layers` in the order of their use, and their sums.

    `batch` images share one reading of the weights in `bytes_moved`; nothing else depends on it.
    `uncounted` names layers without weights whose arithmetic is not known and stands as 0.
    """

    name: str
    batch: int
    layers: tuple[LayerCost, ...]
    uncounted: tuple[str, ...] = ()

    def _sum(self, field: str) -> int:
        return sum(getattr(layer, field) for layer in self.layers)

    @property
    def parameters(self) -> int:
        """Weights without the statistics of batch normalisation: the published number."""
        return self._sum("parameters")

    @property
    def statistics(self) -> int:
        """Moving means and variances of batch normalisation, which no gradient changes."""
        return self._sum("statistics")

    @property
    def trainable(self) -> int:
        """Parameters that training changes; fewer than `parameters` when layers are frozen."""
        return self._sum("trainable")

    @property
    def multiply_adds(self) -> int:
        """Multiply-adds of convolutions and dense layers, as papers count them."""
        return self._sum("multiply_adds")

    @property
    def flops(self) -> int:
        """Two for each multiply-add, and the flops of the other layers."""
        return self._sum("flops")

    @property
    def activation_bytes(self) -> int:
        """What all layers write for one image when the net infers."""
        return self._sum("activation_bytes")

    @property
    def weight_bytes(self) -> int:
        """The weights as they are stored, statistics included; once for any batch."""
        return self._sum("weight_bytes")

    @property
    def bytes_moved(self) -> float:
        """What layers read and write at least for one image, when each runs on its own.

        Fused layers move less: a convolution with its normalisation and ReLU in one kernel
        writes once. Caches that hold an output until it is read do the same.
        """
        return self._sum("bytes_moved")

    @property
    def flops_per_byte(self) -> float:
        """Arithmetic intensity of the net: `flops` over `bytes_moved`."""
        return self.flops / self.bytes_moved

    @property
    def training_multiply_adds(self) -> int:
        """Multiply-adds of one training step for one image.

        Forward F, gradient of the weights F, gradient of the inputs F: 3 F for a layer in the
        middle. The first layer needs no gradient of the images, so it has 2 F. A frozen layer
        has no gradient of its weights, and when no layer before it is trained only F.
        """
        return self._sum("training_multiply_adds")

    @property
    def training_flops(self) -> int:
        """Flops of one training step for one image, without the optimizer's.

        Two for each of `training_multiply_adds`. The other layers count three times their
        forward flops, an estimate: backward they do about twice the work.
        """
        return 2 * self.training_multiply_adds + 3 * self._sum("other_flops")

    @property
    def gradient_bytes(self) -> int:
        """What each rank gives to the allreduce of a step: 4 bytes for a trained parameter."""
        return FLOAT32_BYTES * self.trainable

    @property
    def flops_per_gradient_byte(self) -> float:
        """Training flops of one image for each byte of gradients.

        Times the batch of a rank it is the work between two exchanges for each byte that is
        exchanged. The larger it is, the better a net scales over ranks.
        """
        return self.training_flops / self.gradient_bytes if self.trainable else float("inf")

    def by_kind(self) -> tuple[LayerCost, ...]:
        """Sum the layers of each kind."""
        kinds: dict[str, list[LayerCost]] = {}
        for layer in self.layers:
            kinds.setdefault(layer.kind, []).append(layer)
        sums = [
            LayerCost(
                f"{len(layers)} layers",
                kind,
                (),
                *(sum(getattr(layer, field) for layer in layers) for field in _SUMMED),
            )
            for kind, layers in kinds.items()
        ]
        return tuple(sorted(sums, key=lambda one: (-one.flops, -one.bytes_moved, one.kind)))

    def __str__(self) -> str:
        """Write the totals and one line a kind of layer."""
        lines = [
            f"{self.name}, for each image of a batch of {self.batch}",
            f"{'layers':28} {'parameters':>12} {'multiply-adds':>15} {'other flops':>13} "
            f"{'MB moved':>9} {'flops/byte':>10}",
        ]
        for one in self.by_kind():
            if one.flops or one.bytes_moved:
                lines.append(_line(f"{one.kind} ({one.name})", one, one.other_flops))
        lines.append(_line("all", self, self.flops - 2 * self.multiply_adds))
        if self.uncounted:
            lines.append(f"arithmetic not known, taken as 0: {', '.join(self.uncounted)}")
        return "\n".join(lines)


_SUMMED = (
    *("parameters", "statistics", "trainable", "multiply_adds", "other_flops"),
    *("training_multiply_adds", "activation_bytes", "weight_bytes", "bytes_moved"),
)


def _line(name: str, cost: LayerCost | Cost, other_flops: int) -> str:
    return (
        f"{name:28} {cost.parameters:12,} {cost.multiply_adds:15,} {other_flops:13,} "
        f"{cost.bytes_moved / 1e6:9.2f} {cost.flops_per_byte:10.1f}"
    )
