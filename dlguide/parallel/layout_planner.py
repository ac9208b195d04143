"""Which parallelisation for which net: predicted step time and memory of each layout of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dlguide.errors import require, require_count, require_positive
from dlguide.models.costs import Cost, LayerCost
from dlguide.parallel.pipeline import partition
from dlguide.parallel.pipeline_schedule import bubble
from dlguide.scaling import costs

_Group = tuple[tuple[LayerCost, ...], int]


@dataclass(frozen=True)
class RankSpeeds:
    """What one rank of a machine computes (in training), sends in one direction, and holds."""

    flops_per_s: float
    latency_s: float
    bytes_per_s: float
    memory_bytes: float


@dataclass(frozen=True)
class ParallelLayout:
    """One way to distribute a net over ranks, with its predicted costs.

    `data` copies of the net, each over `tensor` x `pipeline` ranks; 0 where layers differ.
    `step_s` is the sum of `compute_s`, `exchange_s` and `bubble_s`; `memory_bytes` is that of the
    fullest rank. `layers` has, for the layout that is chosen layer by layer, the number of ranks
    that share each layer's weights.
    """

    name: str
    data: int
    tensor: int
    pipeline: int
    compute_s: float
    exchange_s: float
    bubble_s: float
    memory_bytes: float
    fits: bool
    layers: tuple[tuple[str, int], ...] = ()

    @property
    def step_s(self) -> float:
        """Time of one training step (s)."""
        return self.compute_s + self.exchange_s + self.bubble_s


def plan_layout(
    net: Cost | Any,
    ranks: int,
    machine: RankSpeeds,
    global_batch: int,
    microbatches: int = 8,
    bytes_per_weight: int = 16,
) -> tuple[ParallelLayout, ...]:
    """Return the layouts of a net over some ranks, ordered by predicted step time.

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

    Leaves out: overlap of exchange and computing, slower kernels for smaller pieces, buffers. The
    messages of all cuts of a pipeline are added, although their links work at the same time: an
    upper bound. So measure where layouts are close.

    Args:
        net: result of `models.count`, or a Keras model.
        microbatches: parts of a batch in a pipeline.
        bytes_per_weight: memory for each weight with its gradient and optimizer state.

    Returns:
        tuple: every `ParallelLayout`; first those that fit into memory, the fastest first.

    Raises:
        ValueError: when an argument is out of range or the batch is smaller than the ranks.

    Source:
        Ring times: Patarasuk and Yuan 2009. Choice by layer: Krizhevsky 2014 (arXiv:1404.5997)
        and Tofu (Wang, GTC 2017, s7724; arXiv:1807.08887).
    """
    if not isinstance(net, Cost):
        from dlguide.models import count

        net = count(net)
    require_count(ranks, "ranks")
    require_count(global_batch, "global_batch")
    require_count(microbatches, "microbatches")
    for name in ("flops_per_s", "bytes_per_s", "memory_bytes"):
        require_positive(getattr(machine, name), f"machine.{name}")
    require(global_batch >= ranks, "global_batch", f"be at least the {ranks} ranks", global_batch)
    planner = _Planner(net, ranks, machine, global_batch, microbatches, bytes_per_weight)
    found = [
        planner.uniform(ranks // (tensor * pipeline), tensor, pipeline)
        for tensor in _divisors(ranks)
        for pipeline in _divisors(ranks // tensor)
        if pipeline <= len(planner.groups)
    ]
    if ranks > 1:
        found.append(planner.by_layer())
    return tuple(sorted(found, key=lambda layout: (not layout.fits, layout.step_s)))


def layout_table(layouts: Sequence[ParallelLayout]) -> str:
    """Return a table of layouts, one per line."""
    lines = [f"{'layout':24} {'step':>9} {'compute':>9} {'exchange':>9} {'bubble':>9}  memory"]
    for one in layouts:
        times = (one.step_s, one.compute_s, one.exchange_s, one.bubble_s)
        columns = " ".join(f"{1e3 * each:6.1f} ms" for each in times)
        fits = "" if one.fits else "  does not fit"
        lines.append(f"{one.name:24} {columns}  {one.memory_bytes / 1e9:.2f}e9 bytes{fits}")
    return "\n".join(lines)


def _divisors(number: int) -> tuple[int, ...]:
    return tuple(each for each in range(1, number + 1) if number % each == 0)


class _Planner:
    """The formulas of `plan_layout` on the layers of one net."""

    def __init__(
        self,
        net: Cost,
        ranks: int,
        machine: RankSpeeds,
        global_batch: int,
        microbatches: int,
        bytes_per_weight: int,
    ) -> None:
        self.ranks, self.machine, self.batch = ranks, machine, global_batch
        self.microbatches, self.bytes_per_weight = microbatches, bytes_per_weight
        self.compute_s = global_batch * net.training_flops / ranks / machine.flops_per_s
        self.groups = _groups_of(net)

    def uniform(self, data: int, tensor: int, pipeline: int) -> ParallelLayout:
        """Predict a layout that treats all layers alike."""
        machine, samples = self.machine, self.batch / data
        work = [_flops(group) for group, _ in self.groups]
        ends = partition(work, pipeline)
        stages = [self.groups[a:b] for a, b in zip([0, *ends], ends, strict=False)]
        slowest = max(sum(_flops(group) for group, _ in stage) for stage in stages)
        compute_s = samples * slowest / tensor / machine.flops_per_s
        exchange_s = max(
            sum(self._layer_seconds(*one, data, tensor) for one in stage) for stage in stages
        )
        for place in ends[:-1]:
            cut_s = samples * self.groups[place][1] / tensor / machine.bytes_per_s
            exchange_s += 2 * (cut_s + self.microbatches * machine.latency_s)
        share = bubble(pipeline, self.microbatches)
        bubble_s = compute_s * share / (1 - share)
        # stage s of a 1F1B schedule holds p - s of m microbatches
        held = [(pipeline - s) / self.microbatches if pipeline > 1 else 1 for s in range(pipeline)]
        memory = max(
            self._memory(stage, tensor, samples * min(1.0, part))
            for stage, part in zip(stages, held, strict=True)
        )
        sides = {"data": data, "tensor": tensor, "pipeline": pipeline}
        name = " x ".join(f"{side} {n}" for side, n in sides.items() if n > 1) or "one rank"
        fits = memory <= machine.memory_bytes
        return ParallelLayout(name, *sides.values(), compute_s, exchange_s, bubble_s, memory, fits)

    def by_layer(self) -> ParallelLayout:
        """Predict the layout in which each layer is shared as suits it and its neighbours.

        Dynamic programming: for each sharing of the last layer so far, the best way is kept.
        """
        best: dict[int, tuple[float, tuple[int, ...]]] = {}
        for group, input_bytes in self.groups:
            row = {}
            for tensor in _divisors(self.ranks):
                own_s = self._layer_seconds(group, input_bytes, self.ranks // tensor, tensor)
                ways = [
                    (seconds + own_s + self._moving_seconds(input_bytes, before, tensor), way)
                    for before, (seconds, way) in best.items()
                ]
                seconds, way = min(ways, default=(own_s, ()))
                row[tensor] = (seconds, (*way, tensor))
            best = row
        exchange_s, chosen = min(best.values())
        memory = sum(
            self._memory([one], tensor, self.batch * tensor / self.ranks)
            for one, tensor in zip(self.groups, chosen, strict=True)
        )
        fits = memory <= self.machine.memory_bytes
        names = [group[0].name for group, _ in self.groups]
        layers = tuple(zip(names, chosen, strict=True))
        times = self.compute_s, exchange_s, 0.0
        return ParallelLayout("by layer", 0, 0, 1, *times, memory, fits, layers)

    def _moving_seconds(self, input_bytes: int, before: int, after: int) -> float:
        """An alltoall forward and back, where two layers in a row are shared differently."""
        if before == after:
            return 0.0
        own = self.batch * input_bytes / self.ranks * (1 - min(before, after) / max(before, after))
        latencies = (self.ranks - 1) * self.machine.latency_s
        return 2 * (own / self.machine.bytes_per_s + latencies)

    def _layer_seconds(
        self, group: tuple[LayerCost, ...], input_bytes: int, data: int, tensor: int
    ) -> float:
        weights = 4 * sum(layer.trainable for layer in group) / tensor
        samples = self.batch / data
        link = costs.Link(self.machine.latency_s, self.machine.bytes_per_s)
        activations = samples * input_bytes
        gradients_s = costs.allreduce("ring", weights, data, link)
        # a layer's input is gathered forward, the gradient of it summed backward
        gathered_s = costs.allgather(activations, tensor, link)
        return gradients_s + gathered_s + costs.reduce_scatter(activations, tensor, link)

    def _memory(self, stage: list[_Group], tensor: int, held: float) -> float:
        layers = [layer for group, _ in stage for layer in group]
        weights = sum(layer.trainable for layer in layers)
        activations = sum(layer.activation_bytes for layer in layers)
        return (self.bytes_per_weight * weights + held * activations) / tensor


def _groups_of(net: Cost) -> list[_Group]:
    """Group layers: one with weights and those after it, with the bytes of its input."""
    groups: list[_Group] = []
    before = 0
    for layer in net.layers:
        if layer.trainable or not groups:
            groups.append(((layer,), before))
        else:
            groups[-1] = ((*groups[-1][0], layer), groups[-1][1])
        # Flatten and similar layers pass their input on, and count no bytes
        before = layer.activation_bytes or before
    require(net.trainable > 0, "net", "have trainable weights", net.name)
    return groups


def _flops(group: tuple[LayerCost, ...]) -> int:
    return sum(2 * layer.training_multiply_adds + 3 * layer.other_flops for layer in group)
