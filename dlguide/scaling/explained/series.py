"""Speed-ups of the sources: many nodes of PowerAI DDL, S-Caffe's strong scaling, claims."""

from __future__ import annotations

from dlguide import published
from dlguide.errors import require_count
from dlguide.scaling import predict, strong
from dlguide.scaling.explained.result import FITTED, PREDICTED, Explained, Row

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


def ibm_ddl(fitted_nodes: int = 16) -> Explained:
    """Explain the speed-ups of PowerAI DDL on up to 64 nodes of 4 GPUs.

    The unit is a node: the speed-up is over one node of four GPUs, so what is lost inside a node
    is lost in both and vanishes. Nothing here says how good four GPUs are against one.

    Args:
        fitted_nodes: fit the points up to so many nodes, predict the others (count).

    Returns:
        Explained: workers are nodes.

    Raises:
        ValueError: when fewer than two counts of a series remain to be fitted.

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
            rows.append(Row(name, said.workers, ratio, three[0], how, *three[1:]))
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

    Returns:
        Explained: times (s); three costs fitted to six points.

    Source:
        Tutorial, S-Caffe demo.
    """
    table = published.load("s_caffe_strong_scaling")
    found = strong.fit((row["global_batch"], row["gpus"], row["seconds"]) for row in table)
    rows = tuple(
        Row(
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

    Returns:
        Explained: efficiencies (fractions); speed-ups are divided by their workers.

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
        rows.append(Row(claim, workers, share, three[0], PREDICTED, *three[1:]))
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
