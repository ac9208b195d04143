"""Does `models.memory` predict the memory that an image more in the batch really takes?

For each net two trainings run, each in a process of its own, with a smaller and a larger batch.
The difference of their peaks, divided by the difference of the batches, is what one image takes:
weights, framework and imports drop out. It is compared with the predicted activations and
working memory. The allocator gives large arrays back at once (MALLOC_MMAP_THRESHOLD_), so that
the peak is of what is alive.

    python benchmarks/memory_against_measured.py [net,image,small,large,precision ...]
"""

from __future__ import annotations

import os
import sys

from report import report

from dlguide import commands, models

CASES = (
    "mnist_cnn,28,1000,4000,float32",
    "mnist_cnn_bn,28,1000,4000,float32",
    "vgg16,64,64,192,float32",
    "resnet50,64,48,144,float32",
    "resnet50,64,48,144,mixed_bfloat16",
)
SETTINGS = {
    "MALLOC_MMAP_THRESHOLD_": "262144",
    "MALLOC_TRIM_THRESHOLD_": "262144",
    "TF_NUM_INTEROP_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}
LIMIT_S = 120


def build(name: str, image: int, precision: str) -> object:
    """Build the net of a case."""
    if name in models.names("digits"):
        return models.build(name, dtype=precision)
    return models.build(name, dtype=precision, image=image, classes=10)


def peak_after_training(name: str, image: int, batch: int, precision: str) -> int:
    """Train two steps and read this process' largest resident size (bytes)."""
    import keras
    import numpy as np

    model = build(name, image, precision)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, jit_compile=False)
    images = np.ones((batch, *model.input_shape[1:]), "float32")
    for _ in range(2):
        model.train_on_batch(images, np.zeros(batch, "int32"))
    with open("/proc/self/status", encoding="ascii") as file:
        line = next(line for line in file if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def measured(name: str, image: str, batch: str, precision: str) -> int:
    """Do the same in a process of its own."""
    command = [sys.executable, __file__, "--one", name, image, batch, precision]
    done = commands.run(command, LIMIT_S, {**os.environ, **SETTINGS})
    if not done.ok:
        raise RuntimeError(done.tail())
    return int(done.output.split()[-1])


def main(cases: list[str]) -> None:
    """Print measured against predicted bytes an image, and their ratio."""
    print(f"{'net':40} {'measured':>10} {'activations':>12} {'+ working':>10} {'ratio':>6}")
    for case in cases:
        name, image, small, large, precision = case.split(",")
        peaks = [measured(name, image, batch, precision) for batch in (small, large)]
        each = (peaks[1] - peaks[0]) / (int(large) - int(small))
        one = models.memory(build(name, int(image), precision), 1)
        grows = one.activations + one.working
        print(
            f"{case:40} {each / 1e6:7.3f} MB {one.activations / 1e6:9.3f} MB "
            f"{grows / 1e6:7.3f} MB {each / grows:6.2f}",
            flush=True,
        )
        report(
            f"memory of an image / predicted, {name}, {image} pixels, {precision}", [each / grows]
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        name, image, batch, precision = sys.argv[2:]
        print(peak_after_training(name, int(image), int(batch), precision))
    else:
        main(sys.argv[1:] or list(CASES))
