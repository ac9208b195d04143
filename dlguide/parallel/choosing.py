"""Which parallelisation for which net: step time and memory of each layout, predicted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dlguide.errors import require, require_count, require_positive
from dlguide.models.costs import Cost
from dlguide.parallel.layouts import Job, Layout, Speeds, divisors

__all__ = ["Layout", "Speeds", "choose", "table"]


def choose(
    net: Cost | Any,
    ranks: int,
    machine: Speeds,
    batch: int,
    microbatches: int = 8,
    bytes_per_weight: int = 16,
) -> tuple[Layout, ...]:
    """Rank the ways to train a net on some ranks by their predicted step time.

    With W bytes of weights, B samples a step, A bytes of a layer's input for a sample, d copies,
    t ranks that share each layer, b = bytes_per_s and a = latency_s:

        data      allreduce of the gradients       2 (d-1)/d  W/t / b  + 2 (d-1) a
        tensor    for each layer with weights, an allgather of its input forward and a
                  reduce-scatter of that input's gradient backward
                                                   2 (t-1)/t  (B/d) A / b + 2 (t-1) a
        pipeline  activations forward, gradients backward at each cut, and the bubble
                  (p-1)/(m+p-1) of the whole step

    "by layer" takes for each layer the t that costs least in all, with an alltoall where t
    changes. Memory is `bytes_per_weight` for each weight (4 weights, 4 gradients, 8 Adam), and
    the activations that are held.

    Leaves out: overlap of exchange and computing, slower kernels for smaller pieces, buffers. So
    trust the order where layouts are far apart, and measure where they are near.

    Args:
        net: what `models.count` gave, or a Keras model to count.
        ranks: number of ranks (count).
        machine: speeds and memory of a rank and its links.
        batch: global batch (samples).
        microbatches: parts of a batch in a pipeline (count).
        bytes_per_weight: memory for each weight with its gradient and optimizer state (bytes).

    Returns:
        tuple: every Layout; first those that fit into memory, the quickest first.

    Raises:
        ValueError: when a number is out of range or the batch is smaller than the ranks.

    Source:
        Ring times: Patarasuk and Yuan 2009. Choice by layer: Krizhevsky 2014 (arXiv:1404.5997)
        and Tofu (Wang, GTC 2017, s7724; arXiv:1807.08887).
    """
    if not isinstance(net, Cost):
        from dlguide.models import count

        net = count(net)
    require_count(ranks, "ranks")
    require_count(batch, "batch")
    require_count(microbatches, "microbatches")
    for name in ("flops_per_s", "bytes_per_s", "memory_bytes"):
        require_positive(getattr(machine, name), f"machine.{name}")
    require(batch >= ranks, "batch", f"be at least the {ranks} ranks", batch)
    job = Job(net, ranks, machine, batch, microbatches, bytes_per_weight)
    found = [
        job.uniform(ranks // (tensor * pipeline), tensor, pipeline)
        for tensor in divisors(ranks)
        for pipeline in divisors(ranks // tensor)
        if pipeline <= len(job.inputs)
    ]
    if ranks > 1:
        found.append(job.by_layer())
    return tuple(sorted(found, key=lambda layout: (not layout.fits, layout.step_s)))


def table(layouts: Sequence[Layout]) -> str:
    """Write layouts as a table.

    Args:
        layouts: what `choose` gave.

    Returns:
        str: one line each.
    """
    lines = [f"{'layout':24} {'step':>9} {'compute':>9} {'exchange':>9} {'bubble':>9}  memory"]
    for one in layouts:
        times = (one.step_s, one.compute_s, one.exchange_s, one.bubble_s)
        said = " ".join(f"{1e3 * each:6.1f} ms" for each in times)
        fits = "" if one.fits else "  does not fit"
        lines.append(f"{one.name:24} {said}  {one.memory_bytes / 1e9:.2f}e9 bytes{fits}")
    return "\n".join(lines)
