"""The predicted layouts follow their formulas, and those of VGG-19 have the shape of Tofu's.

Tests dlcourse.parallel.layout_planner.
"""

from itertools import product

import pytest

from dlcourse.nets import GPTShape
from dlcourse.parallel import layout_planner, pipeline_schedule
from dlcourse.parallel.layout_planner import RankSpeeds
from dlguide.models.costs import Cost, LayerCost
from dlguide.scaling.costs import Link

FREE = RankSpeeds(1e12, 0.0, 1e30, 1e12)  # links that cost nothing
USUAL = RankSpeeds(6e12, 5e-6, 1e10, 1e12)


def layer(name, inputs, outputs, weights, multiply_adds):
    nbytes = 4 * outputs
    training = 3 * multiply_adds
    sizes = (weights, 0, weights, multiply_adds, 0, training, nbytes, 4 * weights, 0.0)
    return LayerCost(name, "Dense", (outputs,), *sizes)


def net(*layers):
    return Cost("net", 1, layers)


def of(plan, **sides):
    return layout_planner.choose_layout(plan, **sides)


def vgg19():
    """VGG by the table of its paper: 3 x 3 convolutions, pooling after each block, three dense."""
    layers, side, channels = [], 224, 3
    blocks = [(2, 64), (2, 128), (4, 256), (4, 512), (4, 512)]
    for block, (repeats, filters) in enumerate(blocks, start=1):
        for number in range(1, repeats + 1):
            weights = 9 * channels * filters
            work = side * side * weights
            name = f"block{block}_conv{number}"
            layers.append(layer(name, 0, side * side * filters, weights + filters, work))
            channels = filters
        side //= 2
        layers.append(layer(f"pool{block}", 0, side * side * channels, 0, 0))
    inputs = side * side * channels
    for name, units in (("fc1", 4096), ("fc2", 4096), ("logits", 1000)):
        layers.append(layer(name, 0, units, (inputs + 1) * units, inputs * units))
        inputs = units
    return net(*layers)


def test_vgg_on_8_ranks_has_the_shape_of_tofus_answer():
    cost = vgg19()
    assert cost.trainable == 143_667_240  # as published
    by_layer = next(one for one in layout_planner.plan_layout(cost, 8, USUAL, 64) if one.layers)
    shared = dict(by_layer.layers)
    for name, ranks in shared.items():
        if name.startswith("block5"):
            # 4 groups, data parallel among them, 2 ranks that share the channels within
            assert ranks == 2, name
        elif name.startswith("block"):
            assert ranks == 1, name  # data parallel
        else:
            assert ranks == 8, name  # model parallel
    assert by_layer == layout_planner.plan_layout(cost, 8, USUAL, 64)[0]


def test_choice_by_layer_is_the_best_of_all_choices():
    cost = net(
        layer("a", 0, 3000, 50_000, 4_000_000),
        layer("b", 0, 800, 900_000, 900_000),
        layer("c", 0, 10, 8_000, 8_000),
    )
    plan = layout_planner.plan_layout(cost, 4, USUAL, 32)
    by_layer = next(one for one in plan if one.layers)
    inputs = {"a": 0, "b": 4 * 3000, "c": 4 * 800}

    def seconds(way):
        total, before = 0.0, None
        for one, tensor in zip(cost.layers, way, strict=True):
            data, input_bytes = 4 // tensor, inputs[one.name]
            weights = 4 * one.trainable / tensor
            total += 2 * (data - 1) / data * weights / 1e10 + 2 * (data - 1) * 5e-6
            held = 32 / data * input_bytes
            total += 2 * (tensor - 1) / tensor * held / 1e10 + 2 * (tensor - 1) * 5e-6
            if before not in (None, tensor):
                own = 32 * input_bytes / 4 * (1 - min(before, tensor) / max(before, tensor))
                total += 2 * (own / 1e10 + 3 * 5e-6)
            before = tensor
        return total

    ways = {way: seconds(way) for way in product((1, 2, 4), repeat=3)}
    assert by_layer.exchange_s == pytest.approx(min(ways.values()))
    chosen = tuple(ranks for _, ranks in by_layer.layers)
    assert ways[chosen] == pytest.approx(min(ways.values()))


def test_free_links_leave_computing_and_the_bubble():
    cost = net(*(layer(str(number), 0, 100, 10_000, 10_000) for number in range(4)))
    serial_s = 16 * 4 * 2 * 3 * 10_000 / 1e12
    for one in layout_planner.plan_layout(cost, 4, FREE, 16, microbatches=4):
        assert one.compute_s == pytest.approx(serial_s / 4)
        assert one.exchange_s == pytest.approx(0.0)
        if one.layers:
            continue
        assert one.data * one.tensor * one.pipeline == 4
        share = pipeline_schedule.bubble(one.pipeline, 4)
        assert one.bubble_s == pytest.approx(share * one.step_s)
    (alone,) = layout_planner.plan_layout(cost, 1, USUAL, 16)
    assert alone.name == "one rank"
    assert alone.step_s == pytest.approx(16 * 4 * 2 * 3 * 10_000 / 6e12)


def test_memory_is_shared_as_the_weights_and_the_batch_are():
    cost = net(*(layer(str(number), 0, 100, 10_000, 10_000) for number in range(4)))
    weights, activations = 16 * 40_000, 16 * 4 * 400
    found = {one.name: one.memory_bytes for one in layout_planner.plan_layout(cost, 4, FREE, 16, 4)}
    assert found["data 4"] == weights + activations / 4
    assert found["tensor 4"] == (weights + activations) / 4
    # the first of 4 stages holds all 4 microbatches, and a quarter of the layers
    assert found["pipeline 4"] == (weights + activations) / 4
    small = RankSpeeds(1e12, 0.0, 1e30, found["data 4"] - 1)
    ranked = layout_planner.plan_layout(cost, 4, small, 16, 4)
    assert [one.fits for one in ranked] == sorted((one.fits for one in ranked), reverse=True)
    assert "data 4" in {one.name for one in ranked if not one.fits}
    assert "does not fit" in layout_planner.layout_table(ranked)


GPT = GPTShape(16, 40, 24, 4, 2, 20, 6)


def test_every_layout_of_a_gpt_divides_it_and_the_ranks_once():
    plan = layout_planner.plan_layout(GPT, 8, FREE, 16)
    sides = [(one.data, one.tensor, one.pipeline, one.context) for one in plan]
    right = {
        (8 // (t * p * c), t, p, c)
        for t, p, c in product((1, 2), (1, 2, 4), (1, 2, 4, 8))
        if 8 % (t * p * c) == 0
    }
    assert set(sides) == right
    assert len(sides) == len(right)
    assert [one.step_s for one in plan] == sorted(one.step_s for one in plan)
    # with free links all that is lost are the bubble and unequal stages
    serial_s = 16 * GPT.training_flops / 8 / 1e12
    for one in plan:
        assert one.exchange_s == pytest.approx(0.0)
        if one.pipeline == 1:
            assert one.step_s == pytest.approx(serial_s)
        else:
            assert one.compute_s >= serial_s * (1 - 1e-12)
            parts = min(8, 16 // one.data)
            share = pipeline_schedule.bubble(one.pipeline, parts)
            assert one.efficiency == pytest.approx(1 - share)


def test_messages_of_a_gpt_are_those_of_the_formulas():
    net, a, b = GPT, 1e-6, 1e9
    machine = RankSpeeds(1e12, a, b, 1e12)
    stream, batch = 2 * net.length * net.width, 8  # bytes of a sample between blocks
    plan = layout_planner.plan_layout(net, 2, machine, batch)
    layers = net.layers + 2  # embeddings, blocks, last layer: one message for each
    data = 2 * 0.5 * 2 * net.parameters / b + layers * 2 * a
    assert of(plan, data=2).exchange_s == pytest.approx(data)
    pairs = 4 * net.layers + 1
    tensor = pairs * 2 * (a + 0.5 * batch * stream / b)
    assert of(plan, tensor=2).exchange_s == pytest.approx(tensor)
    around = batch * stream  # keys and values of half the heads are as much as the stream
    ring = 3 * net.layers * (a + 0.5 * around / b)
    assert of(plan, context=2).exchange_s == pytest.approx(ring + data)
    cut = 2 * (batch * stream / b + 8 * a)
    assert of(plan, pipeline=2).exchange_s == pytest.approx(cut)
    hidden = layout_planner.plan_layout(net, 2, machine, batch, overlap=0.5)
    whole = of(plan, data=2)
    saved = min(data / 2, 2 / 3 * whole.compute_s)
    assert of(hidden, data=2).step_s == pytest.approx(whole.step_s - saved)
    gathered = layout_planner.plan_layout(net, 2, machine, batch, zero=3)
    assert of(gathered, data=2).exchange_s == pytest.approx(1.5 * data)


def test_recomputation_repeats_the_messages_of_the_forward_pass():
    """Six allreduces in a block instead of four (arXiv:1910.02054, section 8)."""
    net, a, b, batch = GPT, 1e-6, 1e9, 8
    machine = RankSpeeds(1e12, a, b, 1e12)
    usual, again = (
        layout_planner.plan_layout(net, 2, machine, batch, recompute=each) for each in (False, True)
    )
    ring = net.layers * (a + 0.5 * batch * 2 * net.length * net.width / b)
    more_s = {"tensor": 4 * ring, "context": ring, "data": 0.0, "pipeline": 0.0}
    for side, more in more_s.items():
        sides = {side: 2}
        seconds = of(again, **sides).exchange_s - of(usual, **sides).exchange_s
        assert seconds == pytest.approx(more, abs=1e-12)


def test_experts_are_divided_among_copies_and_tokens_travel():
    net, a, b = GPTShape(16, 40, 24, 4, 2, 20, 6, experts=8, active=2), 1e-6, 1e9
    plan = layout_planner.plan_layout(net, 4, RankSpeeds(1e12, a, b, 1e12), 8)
    assert {one.experts for one in plan} == {1, 2, 4}
    one = of(plan, data=4, experts=4)
    expert = net.layers * 8 * net.swiglu
    dense = 1.5 * 2 * (net.parameters - expert) / b + (net.layers + 2) * 6 * a
    routed = 4 * net.layers * 3 * (a + 8 / 4 * 2 * (2 * 16 * 24) / 4 / b)
    assert one.exchange_s == pytest.approx(dense + routed)
    all_copies = of(plan, data=4)
    assert all_copies.memory_bytes - one.memory_bytes == pytest.approx(16 * expert * 3 / 4)


def test_memory_of_a_gpt_is_divided_as_zero_schedules_and_recomputation_do():
    def memory(sides, batch=8, **options):
        plan = layout_planner.plan_layout(GPT, 2, FREE, batch, **options)
        return of(plan, **sides).memory_bytes

    weights, data = GPT.parameters, memory({"data": 2})
    half = data - 16 * weights  # the activations of half the batch
    assert memory({"data": 2}, batch=16) == pytest.approx(16 * weights + 2 * half)
    for zero, left in ((1, 8 + 8 / 2), (2, 4 + 12 / 2), (3, 16 / 2)):
        assert memory({"data": 2}, zero=zero) == pytest.approx(left * weights + half)
    assert memory({"tensor": 2}) == pytest.approx(8 * weights + half)
    assert memory({"context": 2}) == pytest.approx(data)
    assert 16 * weights < memory({"data": 2}, recompute=True) < data
    kept = [memory({"pipeline": 2}, schedule=name) for name in ("1f1b", "zb-h1", "gpipe")]
    assert kept[0] <= kept[1] < kept[2]
    assert memory({"pipeline": 2}, schedule="interleaved", chunks=2) > kept[0]


def test_schedules_of_a_plan_have_their_bubbles():
    def step(**options):
        plan = layout_planner.plan_layout(GPT, 2, FREE, 16, **options)
        return of(plan, pipeline=2)

    usual, split = step(), step(schedule="zb-h1")
    pieces = step(schedule="interleaved", chunks=2)
    assert split.bubble_s == pytest.approx(usual.bubble_s / 3)
    assert pieces.bubble_s / pieces.step_s == pytest.approx(1 / 17)
    again = step(schedule="zb-h1", recompute=True)  # of 4 parts of the work, the weights are 1
    assert again.bubble_s / again.compute_s == pytest.approx(2 / (8 * 4))


def test_groups_within_a_node_have_the_links_inside_it():
    inside = Link(0.0, 1e12)
    machine = RankSpeeds(1e12, 1e-3, 1e6, 1e12, ranks_per_node=2, inside=inside)
    assert machine.link(2) == inside
    assert machine.link(2, stride=2) == machine.link(4) == Link(1e-3, 1e6)
    plan = layout_planner.plan_layout(GPT, 4, machine, 8)
    # tensor ranks are neighbours; copies are not, when each is of two ranks
    assert of(plan, data=2, tensor=2).exchange_s < of(plan, tensor=2, context=2).exchange_s
    alone = layout_planner.plan_layout(GPT, 2, machine, 8)
    assert of(alone, data=2).exchange_s < 1e-6


def test_plans_of_the_llama_herd_fit_where_they_ran():
    """The layout of Llama 3 405B on 16,384 H100 (arXiv:2407.21783, table 4), 80 GB each."""
    net = GPTShape(8192, 128_256, 16_384, 128, 8, 53_248, 126)
    h100 = RankSpeeds(5e14, 5e-6, 50e9, 80e9, ranks_per_node=8, inside=Link(3e-6, 450e9))
    options = {"microbatches": None, "zero": 1, "overlap": 0.9, "recompute": True}
    options |= {"schedule": "interleaved", "chunks": 4}
    plan = layout_planner.plan_layout(net, 16_384, h100, 2048, **options)
    theirs = of(plan, data=128, tensor=8, pipeline=16)
    assert theirs.fits
    assert theirs.step_s < 1.5 * plan[0].step_s
    with pytest.raises(ValueError, match=r"must fit into memory, got 'data 2048 x tensor 8 with"):
        of(plan, data=2048, tensor=8)
