"""The large nets beside each other: what decides how well each of them scales."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dlguide.errors import require, require_known
from dlguide.models import imagenet
from dlguide.models.costs import Cost
from dlguide.models.counting import count
from dlguide.models.kept import kept, record

_SHOWN = (
    *("alexnet", "vgg16", "googlenet", "inception_v3", "resnet50", "resnet101"),
    *("densenet121", "xception", "mobilenet_v2"),
)


@dataclass(frozen=True)
class Footprint:
    """What one net needs for one image, and for one exchange of gradients.

    `image` in pixels, `parameters` the trained ones, `multiply_adds` of one forward pass,
    `activation_bytes` what the forward pass keeps for the backward pass, `gradient_bytes` what
    each rank gives to the allreduce, `flops_per_gradient_byte` those of a training step on one
    image for each of these bytes.
    """

    name: str
    image: int
    parameters: int
    multiply_adds: int
    activation_bytes: int
    gradient_bytes: int
    flops_per_gradient_byte: float

    def __str__(self) -> str:
        """Write one line: M parameters, G multiply-adds, MB of activations and gradients."""
        return (
            f"{self.name:14} {self.image:4} px {self.parameters / 1e6:7.2f} M parameters "
            f"{self.multiply_adds / 1e9:6.2f} G multiply-adds "
            f"{self.activation_bytes / 1e6:6.1f} MB activations "
            f"{self.gradient_bytes / 1e6:6.1f} MB gradients "
            f"{self.flops_per_gradient_byte:5.0f} flops/byte"
        )


def architectures(names: Sequence[str] = _SHOWN) -> tuple[Footprint, ...]:
    """Compute what the guide's nets need, with 1000 classes and their own size of images.

    The guide expects communication to be the bottleneck where a net has many parameters for its
    amount of computation (section 3.4). The last column is that ratio: with an equal batch on
    each rank and an equal network, the net with the most flops for each byte of gradients
    scales best. It takes one to two seconds for each net.

    Args:
        names: which of `imagenet_names()`.

    Returns:
        tuple: one Footprint for each name, in the order of the names.

    Raises:
        ValueError: when a name is unknown.

    Source:
        PRACE Best Practice Guide Deep Learning (2019), sections 2.3 and 3.4.
    """
    listed = not isinstance(names, str)
    require(listed, "names", "be a sequence of names", names, f"Write [{names!r}].")
    for name in names:
        require_known(name, imagenet.ARCHITECTURES, "names")
    return tuple(_footprint(name) for name in names)


def _footprint(name: str) -> Footprint:
    one = imagenet.ARCHITECTURES[name]
    # its weights stay what the layers start with: counting does not look at them
    model = imagenet.assemble(name, one.image, 1000, one.dropout, "float32", 0)
    cost: Cost = count(model)
    return Footprint(
        name=name,
        image=one.image,
        parameters=cost.trainable,
        multiply_adds=cost.multiply_adds,
        activation_bytes=sum(kept(record(model)).values()),
        gradient_bytes=cost.gradient_bytes,
        flops_per_gradient_byte=cost.flops_per_gradient_byte,
    )
