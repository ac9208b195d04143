"""Published tables compared with the models of `dlguide.scaling`, with every assumption."""

from __future__ import annotations

from dataclasses import dataclass

from dlguide import published
from dlguide.errors import require_count
from dlguide.scaling import costs, predict, step, strong

PREDICTED, FITTED, SOLVED = "predicted", "fitted", "solved"

IMAGENET, EPOCHS = 1_281_167, 90
SPREAD = 0.02  # of step times, assumed: no source states one
RESNET_BYTES = 4 * 25_557_032  # float32 gradients, of architectures.csv
GAN_BYTES = 4 * 131e6  # guide, Table 2: 131 million weights
CHESTXRAY_IMAGES = 111_000  # guide, Table 10

HOROVOD, PYTORCH = "Horovod 0.15.2 + TensorFlow 1.12.0", "PyTorch 1.0.0"
BOTH, SERVERS = "Horovod 0.15.2 + PyTorch 1.0.0", "MXNet ps-lite"
# What each claim is about: series (framework, batch), and the largest count fitted. Where a claim
# is itself from the thesis' table, only what was measured up to 8 workers is fitted.
_CLAIMS = {
    "standard distributed TensorFlow efficiency": (SERVERS, 64, 64),
    "Horovod efficiency": (HOROVOD, 64, 32),
    "Horovod + TensorFlow speed-up batch 32": (HOROVOD, 32, 8),
    "Horovod + TensorFlow speed-up batch 64": (HOROVOD, 64, 8),
    "Horovod + TensorFlow speed-up batch 128": (HOROVOD, 128, 8),
    "Horovod + PyTorch speed-up": (BOTH, 128, 8),
    "PyTorch speed-up": (PYTORCH, 128, 8),
}


@dataclass(frozen=True)
class ExplainedRow:
    """One published number and the model's.

    Args:
        what: what is measured, and by whom.
        workers: number of workers, in the table's own unit (count).
        published: as printed.
        predicted: by the model, same unit.
        how: "predicted" from other numbers; "fitted" to this one among more than the model has
            coefficients; "solved": one unknown was chosen so that both agree, which proves
            nothing.
        low: one in twenty is expected to be lower; None where there is no interval.
        high: one in twenty is expected to be higher; None where there is no interval.
    """

    what: str
    workers: int
    published: float
    predicted: float
    how: str
    low: float | None = None
    high: float | None = None

    @property
    def ratio(self) -> float:
        """The model's number over the published one."""
        return self.predicted / self.published

    @property
    def inside(self) -> bool | None:
        """Whether the interval holds the published number; None without an interval."""
        if self.low is None or self.high is None:
            return None
        return self.low <= self.published <= self.high


@dataclass(frozen=True)
class Explained:
    """A published table, row by row.

    Args:
        name: the table's file in `data/published`.
        rows: published and predicted.
        assumptions: all that the source does not state and the model needs, sentences.
    """

    name: str
    rows: tuple[ExplainedRow, ...]
    assumptions: tuple[str, ...]

    def worst(self) -> float:
        """Return the largest relative error among rows that were not solved for (fraction)."""
        return max((abs(row.ratio - 1) for row in self.rows if row.how != SOLVED), default=0.0)

    def __str__(self) -> str:
        width = max(len(row.what) for row in self.rows)
        lines = [f"{self.name}: {'what':{width}}  workers  published  model  off by  how"]
        indent = " " * (len(self.name) + 2)
        for row in self.rows:
            off = "" if row.how == SOLVED else f"{100 * (row.ratio - 1):+.1f} %"
            span = "" if row.low is None else f" ({row.low:.3g} to {row.high:.3g})"
            lines.append(
                f"{indent}{row.what:{width}}  {row.workers:7}  {row.published:9.4g}  "
                f"{row.predicted:.4g}{span}  {off}  {row.how}"
            )
        return "\n".join([*lines, *(f"Assumed: {each}" for each in self.assumptions)])


def time_to_train(spread: float = SPREAD) -> Explained:
    """Explain the guide's hours of training, each with all that it takes to do so.

    Only the 448 nodes are predicted: their step follows from the hours of one node, a ring over a
    stated network, and an assumed spread. For the other two the sources state so little that one
    number has to be solved for.

    Args:
        spread: standard deviation of a node's step time over its mean (ratio).

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
        ExplainedRow("video frames, 8 P100", 8, hours["1x P100"] / hours["8x P100"],
            hours["1x P100"] / (hours["1x P100"] / 8 + others_h), SOLVED),
        ExplainedRow("ResNet-50, Xeon nodes", nodes, one_h / many_h, one_h * 3600 / whole.seconds,
            PREDICTED),
        ExplainedRow("Keras to TensorFlow", 128, keras_h / plain_h,
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
            ExplainedRow("wall clock, evaluation undivided", workers, one_h / many_h,
                one_h / (train_h / speedup + whole_h), SOLVED),
            ExplainedRow("wall clock, had it been divided", workers, speedup, one_h / divided_h,
                PREDICTED),
            ExplainedRow("hours of training (by the log)", workers, logged_h, train_h / speedup,
                PREDICTED),
        ),
        (
            f"All that did not gain {speedup} times is {whole_h:.2f} h, the same on 1 and on "
            f"{workers} GPUs: evaluation, and also start, checkpoints and slow first batches.",
            "The runs differ in schedule and cluster load, not only in the number of GPUs.",
            "The throughputs of Tables 3 and 9 would need 5.2 h at 32 GPUs and 154 h at one, more "
            "than its whole wall clock: their averages hold the slow first batch.",
        ),
    )  # fmt: skip


def ibm_ddl(fitted_nodes: int = 16) -> Explained:
    """Explain the speed-ups of PowerAI DDL on up to 64 nodes of 4 GPUs.

    The unit is a node: the speed-up is over one node of four GPUs, so what is lost inside a node
    is lost in both and vanishes. Nothing here says how good four GPUs are against one.

    Args:
        fitted_nodes: fit the points up to so many nodes, predict the others.

    Source:
        Survey, Tables 3 and 4: Cho et al., arXiv:1708.02188 (2017).
    """
    most, rows = require_count(fitted_nodes, "fitted_nodes", 4), []
    table = published.load("scaling_ibm_ddl")
    for name in dict.fromkeys(row["framework"] for row in table):
        points = {
            row["nodes"]: row["speedup_over_one_node"] for row in table if row["framework"] == name
        }
        found = predict.fit({nodes: ratio for nodes, ratio in points.items() if nodes <= most})
        for said in found.predict(points):
            how = FITTED if said.workers <= most else PREDICTED
            ratio = points[said.workers]
            three = (said.images_per_s, said.low, said.high)
            rows.append(ExplainedRow(name, said.workers, ratio, three[0], how, *three[1:]))
    return Explained(
        "scaling_ibm_ddl",
        tuple(rows),
        (
            "A worker of the model is a node of 4 GPUs: what four lose against one is not in it.",
            "Weak scaling: the batch of a node is the same at all counts (not stated).",
            "The speed-up over one node is rounded to one decimal: up to 2.5 % at 2 nodes.",
            "Link, batch and GPUs are not in the survey; none of them is used.",
            f"Points above {most} nodes were not seen by the fit.",
            "Torch at 16 GPUs is 3.5 / 4 = 0.875; the survey prints 0.86. The speed-up is used.",
        ),
    )


def s_caffe() -> Explained:
    """Explain S-Caffe's strong scaling: AlexNet, batches of 128 and 256 on 1, 2 and 4 GPUs.

    Source:
        Tutorial, S-Caffe demo.
    """
    table = published.load("s_caffe_strong_scaling")
    found = strong.fit((row["global_batch"], row["gpus"], row["seconds"]) for row in table)
    rows = tuple(
        ExplainedRow(
            f"{row['network']}, batch {row['global_batch']}",
            row["gpus"],
            row["seconds"],
            found.seconds(row["global_batch"], row["gpus"]),
            FITTED,
        )
        for row in table
    )
    times = {(row["global_batch"], row["gpus"]): row["seconds"] for row in table}
    small, large = (times[batch, 1] / times[batch, 4] for batch in (128, 256))
    better = 2 * times[128, 1] / times[256, 1]
    saturated = ", ".join(
        f"batch {batch}: no gain beyond {found.best_workers(batch)} GPUs (at most "
        f"{found.most_speedup(batch):.2f} times one)"
        for batch in (128, 256)
    )
    return Explained(
        "s_caffe_strong_scaling",
        rows,
        (
            *found.assumptions,
            "The times are for equal numbers of iterations, whatever the batch (not stated).",
            f"Saturated: {saturated}.",
            f"On 4 GPUs batch 128 is {small:.2f} times as fast as on one, batch 256 {large:.2f} "
            f"times; one GPU itself does {better:.2f} times the images/s with 256.",
        ),
    )


def claims() -> Explained:
    """Place the claimed efficiencies of `claims.csv` on curves fitted to published throughputs.

    Source:
        Thesis 3.4 (quotes the Horovod paper) and 5.3; throughputs: thesis, Tables 1 to 9; guide,
        Table 8.
    """
    stated = {row["claim"]: row for row in published.load("claims")}
    throughputs, rows = published.load("throughput"), []
    for claim, (framework, batch, most) in _CLAIMS.items():
        points = {
            row["workers"]: row["images_per_s"]
            for row in throughputs
            if (row["framework"], row["batch_per_worker"], row["data"])
            == (framework, batch, "ImageNet")
        }
        found = predict.fit({p: rate for p, rate in points.items() if p <= most})
        workers, value = int(stated[claim]["workers"]), float(stated[claim]["value"])
        share = value if stated[claim]["unit"].startswith("share") else value / workers
        (said,) = found.predict([workers])
        # over the measured speed of one worker, as those who claim divide
        whole = workers * points[1]
        three = (said.images_per_s / whole, said.low / whole, said.high / whole)
        rows.append(ExplainedRow(claim, workers, share, three[0], PREDICTED, *three[1:]))
    return Explained(
        "claims",
        tuple(rows),
        (
            "The two claims at 128 GPUs are the Horovod paper's, for other nets and another "
            "cluster: the thesis' ResNet-50 on P100 with batch 64 stands for Horovod.",
            "MXNet's servers (guide, Table 8) stand for TensorFlow's, of which no series over "
            "nodes was published.",
            "Speed-ups at 32 GPUs: fitted on 1 to 8 GPUs of the same series, 2 GPUs included, "
            "which shared their node with others.",
            "Averages of 200 batches with the slow first one inside (thesis).",
        ),
    )
