"""One layout of a net over ranks: what it computes, sends, waits for and holds."""

from __future__ import annotations

from dataclasses import dataclass

from dlguide.errors import require
from dlguide.models.costs import Cost, LayerCost
from dlguide.parallel.schedules import bubble
from dlguide.parallel.stages import partition
from dlguide.scaling import costs

FLOAT_BYTES = 4


@dataclass(frozen=True)
class Speeds:
    """A machine in four numbers: what one rank computes, sends and holds.

    Args:
        flops_per_s: speed of training on one rank (flops/s).
        latency_s: time of an empty message (s).
        bytes_per_s: speed of a link in one direction (bytes/s).
        memory_bytes: memory of one rank (bytes).
    """

    flops_per_s: float
    latency_s: float
    bytes_per_s: float
    memory_bytes: float

    @property
    def link(self) -> costs.Link:
        """The links; adding up what arrives is left out."""
        return costs.Link(self.latency_s, self.bytes_per_s)


@dataclass(frozen=True)
class Layout:
    """One way to lay a net over ranks, and what it is predicted to cost.

    `data` copies of the net, each over `tensor` x `pipeline` ranks; 0 where layers differ.
    `step_s` is the sum of `compute_s`, `exchange_s` and `bubble_s`; `memory_bytes` is that of the
    fullest rank. `layers` says, for the layout that chooses layer by layer, how many ranks share
    each layer's weights.
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


def divisors(number: int) -> tuple[int, ...]:
    """List the divisors of a number.

    >>> divisors(12)
    (1, 2, 3, 4, 6, 12)
    """
    return tuple(each for each in range(1, number + 1) if number % each == 0)


class Job:
    """A net with its batch on a machine: the formulas of `choosing.choose` on its layers.

    Args:
        net: what `models.count` gave.
        ranks: number of ranks (count).
        machine: speeds and memory of a rank and its links.
        batch: global batch (samples).
        microbatches: parts of a batch in a pipeline (count).
        bytes_per_weight: memory for each weight with its gradient and optimizer state (bytes).
    """

    def __init__(
        self,
        net: Cost,
        ranks: int,
        machine: Speeds,
        batch: int,
        microbatches: int,
        bytes_per_weight: int,
    ) -> None:
        self.net, self.ranks, self.machine, self.batch = net, ranks, machine, batch
        self.microbatches, self.bytes_per_weight = microbatches, bytes_per_weight
        self.compute_s = batch * net.training_flops / ranks / machine.flops_per_s
        self.inputs = _inputs(net)

    def uniform(self, data: int, tensor: int, pipeline: int) -> Layout:
        """Predict a layout that treats all layers alike.

        Args:
            data: copies of the net (count).
            tensor: ranks that share each layer (count).
            pipeline: stages (count).

        Returns:
            Layout: its times and memory.
        """
        machine, samples = self.machine, self.batch / data
        work = [_flops(group) for group, _ in self.inputs]
        ends = partition(work, pipeline)
        stages = [self.inputs[a:b] for a, b in zip([0, *ends], ends, strict=False)]
        slowest = max(sum(_flops(group) for group, _ in stage) for stage in stages)
        compute_s = samples * slowest / tensor / machine.flops_per_s
        exchange_s = max(self._stage_seconds(stage, data, tensor) for stage in stages)
        for place in ends[:-1]:
            cut_bytes = samples * self.inputs[place][1] / tensor
            exchange_s += 2 * (
                cut_bytes / machine.bytes_per_s + self.microbatches * machine.latency_s
            )
        share = bubble(pipeline, self.microbatches)
        # what is held at stage s of a 1F1B schedule: p - s of m microbatches
        memory = max(
            self._memory(stage, tensor, samples * min(1.0, (pipeline - s) / self.microbatches))
            if pipeline > 1
            else self._memory(stage, tensor, samples)
            for s, stage in enumerate(stages)
        )
        sides = {"data": data, "tensor": tensor, "pipeline": pipeline}
        name = " x ".join(f"{side} {count}" for side, count in sides.items() if count > 1)
        return Layout(
            name or "one rank",
            data,
            tensor,
            pipeline,
            compute_s,
            exchange_s,
            compute_s * share / (1 - share),
            memory,
            memory <= machine.memory_bytes,
        )

    def by_layer(self) -> Layout:
        """Predict the layout in which each layer has the sharing that suits it and its neighbours.

        Step by step through the layers it keeps, for each sharing of the last one, the best way.

        Returns:
            Layout: its times and memory; `layers` holds the choice.
        """
        best: dict[int, tuple[float, tuple[int, ...]]] = {}
        for group, input_bytes in self.inputs:
            row = {}
            for tensor in divisors(self.ranks):
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
            for one, tensor in zip(self.inputs, chosen, strict=True)
        )
        fits = memory <= self.machine.memory_bytes
        layers = tuple(
            (group[0].name, t) for (group, _), t in zip(self.inputs, chosen, strict=True)
        )
        return Layout("by layer", 0, 0, 1, self.compute_s, exchange_s, 0.0, memory, fits, layers)

    def _moving_seconds(self, input_bytes: int, before: int, after: int) -> float:
        """An alltoall forward and back, where two layers in a row are shared differently."""
        if before == after:
            return 0.0
        own = self.batch * input_bytes / self.ranks * (1 - min(before, after) / max(before, after))
        latencies = (self.ranks - 1) * self.machine.latency_s
        return 2 * (own / self.machine.bytes_per_s + latencies)

    def _stage_seconds(self, stage: list[_Group], data: int, tensor: int) -> float:
        return sum(self._layer_seconds(*one, data, tensor) for one in stage)

    def _layer_seconds(
        self, group: tuple[LayerCost, ...], input_bytes: int, data: int, tensor: int
    ) -> float:
        weights = FLOAT_BYTES * sum(layer.trainable for layer in group) / tensor
        samples = self.batch / data
        link, activations = self.machine.link, samples * input_bytes
        gradients_s = costs.allreduce("ring", weights, data, link)
        # A layer's input is gathered on the way forward, its gradient summed on the way back.
        gathered_s = costs.allgather(activations, tensor, link)
        return gradients_s + gathered_s + costs.reduce_scatter(activations, tensor, link)

    def _memory(self, stage: list[_Group], tensor: int, held: float) -> float:
        layers = [layer for group, _ in stage for layer in group]
        weights = sum(layer.trainable for layer in layers)
        activations = sum(layer.activation_bytes for layer in layers)
        return (self.bytes_per_weight * weights + held * activations) / tensor


_Group = tuple[tuple[LayerCost, ...], int]


def _inputs(net: Cost) -> list[_Group]:
    """Group layers: one with weights and those after it, with the bytes of its input."""
    groups: list[_Group] = []
    before = 0
    for layer in net.layers:
        if layer.trainable or not groups:
            groups.append(((layer,), before))
        else:
            groups[-1] = ((*groups[-1][0], layer), groups[-1][1])
        # Flatten and the like hand on what they get, and count no bytes
        before = layer.activation_bytes or before
    require(net.trainable > 0, "net", "have trainable weights", net.name)
    return groups


def _flops(group: tuple[LayerCost, ...]) -> int:
    return sum(2 * layer.training_multiply_adds + 3 * layer.other_flops for layer in group)
