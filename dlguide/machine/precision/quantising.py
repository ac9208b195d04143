"""Post-training quantisation: a trained net with 8-bit integers in place of floats.

Each array x is stored as q = round(x / scale) + zero, with q in 8 bits. The weights' scales come
from the weights, one for each output channel. Those of the activations need *calibration*: a few
real images go through the net, and the largest and smallest value of each array are kept.

The work is onnxruntime's; what is here hands it a net in the right form.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide.errors import require, require_known
from dlguide.machine import extensions
from dlguide.machine.describe import describe
from dlguide.machine.precision import onnx_graph

if TYPE_CHECKING:
    import keras

FORMS = ("QDQ", "QOperator")


@dataclass(frozen=True)
class Quantised:
    """A net in two files: as it was, and quantised.

    Args:
        path: the ONNX file with 8-bit integers.
        float32_path: the ONNX file in float32.
        nbytes: size of the first (bytes).
        float32_nbytes: size of the second (bytes).
        weight_bits: bits of the weights that are used, 8 or 7 (count).
        form: how the file says it, one of `FORMS`.
        calibration_images: images that the ranges come from (count).
    """

    path: str
    float32_path: str
    nbytes: int
    float32_nbytes: int
    weight_bits: int
    form: str
    calibration_images: int


def quantise(
    model: keras.Model,
    calibration_images: np.ndarray,
    folder: str | os.PathLike,
    form: str = "QDQ",
    per_channel: bool = True,
    weight_bits: int | None = None,
) -> Quantised:
    """Quantise a trained Keras net to 8-bit integers, weights and activations.

    Activations are unsigned and weights signed, which is what VNNI multiplies. Without VNNI the
    sum of two such products may not fit its 16 bits (see `accumulating.dot_in_pairs`), therefore
    the weights then get 7 bits.

    Args:
        model: trained; as for `onnx_graph.graph`.
        calibration_images: inputs as in training, of the kind that will come,
            shape (images, rows, columns, channels).
        folder: where "<name>.onnx" and "<name>_int8.onnx" are written; made if missing.
        form: "QDQ" writes float operators between pairs of quantise and dequantise, which
            onnxruntime fuses when it loads them; "QOperator" writes the fused ones.
        per_channel: one scale for each output channel of a layer; False for one a layer.
        weight_bits: 8 or 7; None for 8 where this machine has VNNI, otherwise 7.

    Returns:
        Quantised: where the files are, and their sizes.

    Raises:
        ValueError: when the net cannot be written as ONNX, the images do not fit it, or an
            argument is unknown.
    """
    require_known(form, FORMS, "form")
    require(weight_bits in (None, 7, 8), "weight_bits", "be 7, 8 or None", weight_bits)
    images = np.asarray(calibration_images, "float32")
    _require_images(images, model.input_shape[1:], "calibration_images")
    bits = weight_bits or (8 if has_vnni() else 7)

    import onnx
    from onnxruntime import quantization

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    plain, narrow = folder / f"{model.name}.onnx", folder / f"{model.name}_int8.onnx"
    onnx_graph.export(model, plain)
    # what the library's pre-processing would do, folding, is done; this tells it so
    ready = onnx.load(plain)
    ready.metadata_props.add(key="onnx.quant.pre_process", value="onnxruntime.quant")
    quantization.quantize_static(
        ready,
        str(narrow),
        _Reader(images),
        quant_format=quantization.QuantFormat[form],
        per_channel=per_channel,
        reduce_range=bits == 7,
        activation_type=quantization.QuantType.QUInt8,
        weight_type=quantization.QuantType.QInt8,
    )
    sizes = narrow.stat().st_size, plain.stat().st_size
    return Quantised(str(narrow), str(plain), *sizes, bits, form, len(images))


def has_vnni(simd: tuple[str, ...] | None = None) -> bool:
    """Tell whether a processor multiplies 8-bit integers with 32-bit sums in one instruction.

    Args:
        simd: vector extensions as in `Machine.simd`; None for this machine's.

    Returns:
        bool: whether it has VNNI (x86) or dot products of bytes (Arm).
    """
    simd = describe().simd if simd is None else simd
    return extensions.has(simd, "vnni") or extensions.has(simd, "dot")


class _Reader:
    """Hands the calibration images to the library, a few at a time."""

    def __init__(self, images: np.ndarray) -> None:
        self.batches: Iterator[np.ndarray] = iter(np.array_split(images, max(1, len(images) // 32)))

    def get_next(self) -> dict[str, Any] | None:
        batch = next(self.batches, None)
        return None if batch is None else {"images": batch}


def _require_images(images: np.ndarray, shape: tuple[int, ...], name: str) -> None:
    fits = images.shape[1:] == tuple(shape) and len(images) > 0
    require(fits, name, f"have shape (images, {', '.join(map(str, shape))})", images.shape)
    require(bool(np.isfinite(images).all()), name, "be finite", "NaN or infinity")
