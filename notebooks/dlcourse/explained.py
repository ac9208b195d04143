"""Published tables compared with the models of `dlguide.scaling`, with every assumption."""

from __future__ import annotations

from dataclasses import dataclass

from dlguide import published
from dlguide.scaling import costs, predict, step

PREDICTED, FITTED = "predicted", "fitted"

IMAGENET, EPOCHS = 1_281_167, 90
RESNET_BYTES = 4 * 25_557_032  # float32 gradients, of architectures.csv


@dataclass(frozen=True)
class ExplainedRow:
    """One published number and the model's, with its interval if it has one."""

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


@dataclass(frozen=True)
class Explained:
    """A published table, row by row."""

    name: str
    rows: tuple[ExplainedRow, ...]
    assumptions: tuple[str, ...]

    def __str__(self) -> str:
        width = max(len(row.what) for row in self.rows)
        lines = [f"{self.name}: {'what':{width}}  workers  published  model  off by  how"]
        indent = " " * (len(self.name) + 2)
        for row in self.rows:
            span = "" if row.low is None else f" ({row.low:.3g} to {row.high:.3g})"
            lines.append(
                f"{indent}{row.what:{width}}  {row.workers:7}  {row.published:9.4g}  "
                f"{row.predicted:.4g}{span}  {100 * (row.ratio - 1):+.1f} %  {row.how}"
            )
        return "\n".join([*lines, *(f"Assumed: {each}" for each in self.assumptions)])


def time_to_train(spread: float = 0.02) -> Explained:
    """Explain the guide's hours of ResNet-50 on 448 nodes by those on one.

    Args:
        spread: of step times (share); no source states one.
    """
    hours = {row["configuration"]: row["hours"] for row in published.load("time_to_train")}
    nodes, batch = 448, 32
    one_h = hours["1x Xeon Platinum 8160 node"]
    many_h = hours["448x Xeon Platinum 8160 nodes"]
    step_s = one_h * 3600 / (EPOCHS * IMAGENET / batch)
    # Omni-Path's latency was not found published; at this size 100 times as much changes nothing
    link = costs.link("Omni-Path", latency_s=1e-6)
    ring_s = costs.allreduce("ring", RESNET_BYTES, nodes, link)
    there = step.predict(step_s, ring_s, nodes, spread=spread)
    whole = step.training(there.seconds, batch, nodes, IMAGENET, EPOCHS)
    what, ratios = "ResNet-50, Xeon nodes", (one_h / many_h, one_h * 3600 / whole.seconds)
    return Explained(
        "time_to_train",
        (ExplainedRow(what, nodes, *ratios, PREDICTED),),
        (
            "All hours are rounded in the guide ('~400', '1h'): 10 % is within them.",
            f"{EPOCHS} epochs of {IMAGENET:,} images, 32 per node and step (2 workers of 16), so "
            f"one node needs {1e3 * step_s:.0f} ms for a step.",
            f"{RESNET_BYTES / 1e6:.0f} MB of gradients in float32 around a ring of nodes over "
            f"Omni-Path (100 Gbit/s, one rail, 1 us): {1e3 * ring_s:.1f} ms, none of it hidden. "
            "The network is named for MLSL, not for this table.",
            f"Step times spread by {100 * spread:g} % (assumed): waiting for the slowest of "
            f"{nodes} takes {1e3 * there.straggler_s:.1f} ms.",
            "One node's images come as fast as it computes; no evaluation, no checkpoints.",
        ),
    )


def ibm_ddl() -> Explained:
    """Explain the speed-ups of PowerAI DDL on up to 64 nodes of 4 GPUs, fitted on up to 16."""
    most, rows = 16, []
    table = published.load("scaling_ibm_ddl")
    for name in dict.fromkeys(row["framework"] for row in table):
        points = {
            row["nodes"]: row["speedup_over_one_node"] for row in table if row["framework"] == name
        }
        found = predict.fit({nodes: ratio for nodes, ratio in points.items() if nodes <= most})
        for said in found.predict(points):
            how = FITTED if said.workers <= most else PREDICTED
            three = (said.images_per_s, said.low, said.high)
            ratio = points[said.workers]
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
