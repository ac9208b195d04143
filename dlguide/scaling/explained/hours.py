"""Hours of the sources: time to train on one device and on many."""

from __future__ import annotations

from dlguide import published
from dlguide.scaling import costs, step
from dlguide.scaling.explained.result import PREDICTED, SOLVED, Explained, Row

IMAGENET, EPOCHS = 1_281_167, 90
SPREAD = 0.02  # of step times, assumed: no source states one
RESNET_BYTES = 4 * 25_557_032  # float32 gradients, of architectures.csv
GAN_BYTES = 4 * 131e6  # guide, Table 2: 131 million weights
CHESTXRAY_IMAGES = 111_000  # guide, Table 10


def time_to_train(spread: float = SPREAD) -> Explained:
    """Explain the guide's hours of training, each with all that it takes to do so.

    Only the 448 nodes are predicted: their step follows from the hours of one node, a ring over a
    stated network, and an assumed spread. For the other two the sources state so little that one
    number has to be solved for.

    Args:
        spread: standard deviation of a node's step time over its mean (ratio).

    Returns:
        Explained: speed-ups.

    Source:
        Guide, Tables 2, 4, 5, 6, 10, 12 and 13.
    """
    hours = {row["configuration"]: row["hours"] for row in published.load("time_to_train")}
    nodes, batch = 448, 32
    one_h = hours["1x Xeon Platinum 8160 node"]
    step_s = one_h * 3600 / (EPOCHS * IMAGENET / batch)
    # Omni-Path's latency was not found published; at this size 100 times as much changes nothing
    link = costs.link("Omni-Path", latency_s=1e-6)
    ring_s = costs.allreduce("ring", RESNET_BYTES, nodes, link)
    there = step.predict(step_s, ring_s, nodes, spread=spread)
    whole = step.training(there.seconds, batch, nodes, IMAGENET, EPOCHS)
    many_h = hours["448x Xeon Platinum 8160 nodes"]
    others_h = hours["8x P100"] - hours["1x P100"] / 8
    nvlink = costs.link("NVLink 1")
    # one copy of the weights to each of 7 GPUs and their gradients back, all through GPU 0
    gather_s = 2 * 7 * nvlink.seconds(GAN_BYTES)
    alone_s = gather_s * hours["1x P100"] / others_h
    keras_h, plain_h = hours["Keras 128 nodes"], hours["TensorFlow 1.6 128 nodes"]
    extra_s = 3600 * (keras_h - plain_h) / (CHESTXRAY_IMAGES / 256)
    rows = (
        Row("video frames, 8 P100", 8, hours["1x P100"] / hours["8x P100"],
            hours["1x P100"] / (hours["1x P100"] / 8 + others_h), SOLVED),
        Row("ResNet-50, Xeon nodes", nodes, one_h / many_h, one_h * 3600 / whole.seconds,
            PREDICTED),
        Row("Keras to TensorFlow", 128, keras_h / plain_h,
            (plain_h * 3600 + extra_s * CHESTXRAY_IMAGES / 256) / (plain_h * 3600), SOLVED),
    )  # fmt: skip
    return Explained(
        "time_to_train",
        rows,
        (
            "All hours are rounded in the guide ('~400', '~14 days', '1h'): 10 % is within them.",
            f"ResNet-50: {EPOCHS} epochs of {IMAGENET:,} images, 32 a node and step (2 workers of "
            f"16), so one node needs {1e3 * step_s:.0f} ms for a step.",
            f"ResNet-50: {RESNET_BYTES / 1e6:.0f} MB of gradients in float32 around a ring of "
            f"nodes over Omni-Path (100 Gbit/s, one rail, 1 us): {1e3 * ring_s:.1f} ms, none of "
            "it hidden. The network is named for MLSL, not for this table.",
            f"ResNet-50: step times spread by {100 * spread:g} % (assumed): waiting for the "
            f"slowest of {nodes} takes {1e3 * there.straggler_s:.1f} ms.",
            "ResNet-50: one node's images come as fast as it computes; no evaluation, no "
            "checkpoints.",
            "Video frames: DataParallel gathers all gradients on GPU 0 and sends the weights out "
            "again: 7 copies each way, one NVLink at a time.",
            f"Video frames: solved for: then one P100 would need {alone_s:.2f} s for a step. "
            "The guide states no batch and no step time, so nothing can be checked.",
            "Keras: steps and exchange are equal; what Keras adds is spent image by image on each "
            "of 256 workers (2 a node, Table 12).",
            f"Keras: solved for: {1e3 * extra_s:.0f} ms an image and worker, if an epoch is "
            f"ChestX-ray14's {CHESTXRAY_IMAGES:,} images; the guide says pre-training, which "
            "would be ImageNet. Its cause (input, conversion) is not stated.",
        ),
    )


def evaluation() -> Explained:
    """Explain why 29.4 times the throughput was 22.5 times the speed of the whole training.

    In the thesis every rank evaluated all 50 000 images after each epoch. Two wall clocks and the
    throughput's speed-up give the part that nobody divided.

    Returns:
        Explained: speed-ups of the wall clock, and the hours of training on 32 GPUs.

    Source:
        Thesis, Figure 17, experiments 4 and 5 (6 days 4 h 16 min; 6 h 36 min).
    """
    one_h, many_h, workers, speedup = 6 * 24 + 4 + 16 / 60, 6.6, 32, 29.4
    train_h, whole_h = step.not_divided(one_h, many_h, speedup)
    divided_h = train_h / speedup + whole_h / workers
    logged_h = 5.1
    return Explained(
        "evaluation of the thesis",
        (
            Row("wall clock, evaluation undivided", workers, one_h / many_h,
                one_h / (train_h / speedup + whole_h), SOLVED),
            Row("wall clock, had it been divided", workers, speedup, one_h / divided_h,
                PREDICTED),
            Row("hours of training (by the log)", workers, logged_h, train_h / speedup, PREDICTED),
        ),
        (
            f"All that did not gain {speedup} times is {whole_h:.2f} h, the same on 1 and on "
            f"{workers} GPUs: evaluation, and also start, checkpoints and slow first batches.",
            "The runs differ in schedule and cluster load, not only in the number of GPUs.",
            "The throughputs of Tables 3 and 9 would need 5.2 h at 32 GPUs and 154 h at one, more "
            "than its whole wall clock: their averages hold the slow first batch.",
        ),
    )  # fmt: skip
