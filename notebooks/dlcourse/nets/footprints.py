"""What large nets need for one image and for one exchange of gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dlcourse import nets
from dlguide import models
from dlguide.models.memory import record, saved_activations


@dataclass(frozen=True)
class Footprint:
    """What one net needs for one image of `image` pixels, and for one exchange of gradients.

    `parameters` are the trained ones, `multiply_adds` those of one forward pass,
    `activation_bytes` what it keeps for the backward pass, `gradient_bytes` what each rank gives
    to the allreduce, `flops_per_gradient_byte` the training flops of one image for each of these.
    """

    name: str
    image: int
    parameters: int
    multiply_adds: int
    activation_bytes: int
    gradient_bytes: int
    flops_per_gradient_byte: float

    def __str__(self) -> str:
        return (
            f"{self.name:14} {self.image:4} px {self.parameters / 1e6:7.2f} M parameters "
            f"{self.multiply_adds / 1e9:6.2f} G multiply-adds "
            f"{self.activation_bytes / 1e6:6.1f} MB activations "
            f"{self.gradient_bytes / 1e6:6.1f} MB gradients "
            f"{self.flops_per_gradient_byte:5.0f} flops/byte"
        )


def footprints(names: Sequence[str]) -> tuple[Footprint, ...]:
    """Compute what the guide's nets need, with 1000 classes and their own size of images.

    The guide expects communication to be the bottleneck where a net has many parameters for its
    amount of computation (section 3.4). The last column is that ratio: with an equal batch on
    each rank and an equal network, the net with the most flops for each byte of gradients
    scales best. It takes one to two seconds for each net.

    Source:
        PRACE Best Practice Guide Deep Learning (2019), sections 2.3 and 3.4.
    """
    return tuple(_footprint(name) for name in names)


def _footprint(name: str) -> Footprint:
    # without initial weights: counting does not look at them
    model = (models.build if name in models.names() else nets.build)(name, seed=None)
    cost = models.count(model)
    return Footprint(
        name=name,
        image=model.input_shape[1],
        parameters=cost.trainable,
        multiply_adds=cost.multiply_adds,
        activation_bytes=sum(saved_activations(record(model)).values()),
        gradient_bytes=cost.gradient_bytes,
        flops_per_gradient_byte=cost.flops_per_gradient_byte,
    )
