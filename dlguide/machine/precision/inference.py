"""Inference with onnxruntime: float32 and 8-bit integers on the same images, side by side."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dlguide import measure
from dlguide.errors import require, require_count
from dlguide.machine.describe import describe
from dlguide.machine.precision.quantising import Quantised

if TYPE_CHECKING:
    import onnxruntime


@dataclass(frozen=True)
class Comparison:
    """The same images through both nets, turn by turn.

    Args:
        float32: times of one batch in float32.
        int8: times of one batch in 8-bit integers.
        batch: images of one batch (count).
        threads: threads of both (count).
        same_label: share of the images for which both name the same class.
        distance: largest distance of the outputs, relative to the largest output.
    """

    float32: measure.Timing
    int8: measure.Timing
    batch: int
    threads: int
    same_label: float
    distance: float

    @property
    def speed_up(self) -> measure.Ratio:
        """How many times as long float32 took, with the range of the quartiles."""
        return measure.ratio(self.float32, self.int8)


def session(path: str | os.PathLike, threads: int | None = None) -> onnxruntime.InferenceSession:
    """Load an ONNX file for inference on the processor.

    Args:
        path: the file.
        threads: threads of one operator (count); None for the cores this process may use.

    Returns:
        onnxruntime.InferenceSession: ready to run.

    Raises:
        ValueError: when `threads` is no whole number of at least 1.
    """
    return _load(path, threads)


def infer(
    path: str | os.PathLike, images: np.ndarray, batch: int = 100, threads: int | None = None
) -> np.ndarray:
    """Run images through an ONNX net.

    Args:
        path: the file, `Quantised.path` or `Quantised.float32_path`.
        images: inputs, shape (images, rows, columns, channels).
        batch: images at once (count).
        threads: as for `session`.

    Returns:
        numpy.ndarray: outputs, shape (images, classes).

    Raises:
        ValueError: when a count is below 1 or there are no images.
    """
    require_count(batch, "batch")
    require(len(images) > 0, "images", "hold at least one image", len(images))
    net = session(path, threads)
    inputs = np.asarray(images, "float32")
    begins = range(0, len(inputs), batch)
    return np.concatenate(
        [net.run(None, {"images": inputs[begin : begin + batch]})[0] for begin in begins]
    )


def compare(
    quantised: Quantised,
    images: np.ndarray,
    turns: int = 7,
    threads: int | None = None,
) -> Comparison:
    """Time float32 and 8-bit integers on the same batch, and hold their outputs together.

    They take turns, so that whatever else happens on the machine meets both.

    Args:
        quantised: the two files.
        images: one batch, shape (images, rows, columns, channels).
        turns: times that each of the two runs (count).
        threads: as for `session`.

    Returns:
        Comparison: times and agreement.

    Raises:
        ValueError: when a count is below 1 or there are no images.
    """
    require_count(turns, "turns")
    inputs = {"images": np.asarray(images, "float32")}
    require(len(images) > 0, "images", "hold at least one image", len(images))
    nets = [session(path, threads) for path in (quantised.float32_path, quantised.path)]
    wide, narrow = (net.run(None, inputs)[0] for net in nets)
    seconds: list[list[float]] = [[], []]
    for _ in range(turns):
        for net, times in zip(nets, seconds, strict=True):
            # the untimed run brings this net's weights back into the caches
            once = measure.timing(lambda net=net: net.run(None, inputs), repeats=1, warmup=1)
            times += once.seconds
    timings = (measure.Timing(tuple(times)) for times in seconds)
    same = float(np.mean(wide.argmax(axis=-1) == narrow.argmax(axis=-1)))
    distance = float(np.abs(wide - narrow).max() / np.abs(wide).max())
    return Comparison(*timings, len(images), _threads(threads), same, distance)


def operators(
    path: str | os.PathLike, images: np.ndarray, threads: int | None = None
) -> dict[str, tuple[int, float]]:
    """List the operators that onnxruntime really runs, by its own profile of one batch.

    Those whose name begins with QLinear or that end in Integer compute in 8 bits.

    Args:
        path: the file.
        images: one batch, shape (images, rows, columns, channels).
        threads: as for `session`.

    Returns:
        dict: operator -> (how many there are, seconds of all of them), the slowest first.

    Raises:
        ValueError: when `threads` is below 1.
    """
    inputs = {"images": np.asarray(images, "float32")}
    with tempfile.TemporaryDirectory() as folder:
        net = _load(path, threads, os.path.join(folder, "profile"))
        net.run(None, inputs)  # the first run sets up memory
        net.run(None, inputs)
        events = json.loads(Path(net.end_profiling()).read_text())
    last = max((e["ts"] for e in events if e["name"] == "model_run"), default=0)
    found: dict[str, tuple[int, float]] = {}
    for event in events:
        if event.get("cat") == "Node" and event["ts"] >= last:
            kind = event["args"]["op_name"]
            count, total = found.get(kind, (0, 0.0))
            found[kind] = (count + 1, total + event["dur"] / 1e6)
    return dict(sorted(found.items(), key=lambda each: -each[1][1]))


def _threads(threads: int | None) -> int:
    return describe().usable_cores if threads is None else require_count(threads, "threads")


def _load(
    path: str | os.PathLike, threads: int | None, profile: str = ""
) -> onnxruntime.InferenceSession:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = _threads(threads)
    options.log_severity_level = 3  # errors only: it warns of every constant that it moves
    # otherwise its threads go on asking for work after a run and keep cores from the other net
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if profile:
        options.enable_profiling, options.profile_file_prefix = True, profile
    return onnxruntime.InferenceSession(
        os.fspath(path), options, providers=["CPUExecutionProvider"]
    )
