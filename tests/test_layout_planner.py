"""The predicted layouts follow their formulas, and those of VGG-19 have the shape of Tofu's.

Tests dlguide.parallel.layout_planner.
"""

from itertools import product

import pytest

from dlguide.models.costs import Cost, LayerCost
from dlguide.parallel import layout_planner, pipeline_schedule
from dlguide.parallel.layout_planner import RankSpeeds

FREE = RankSpeeds(1e12, 0.0, 1e30, 1e12)  # links that cost nothing
USUAL = RankSpeeds(6e12, 5e-6, 1e10, 1e12)


def layer(name, inputs, outputs, weights, multiply_adds):
    nbytes = 4 * outputs
    training = 3 * multiply_adds
    sizes = (weights, 0, weights, multiply_adds, 0, training, nbytes, 4 * weights, 0.0)
    return LayerCost(name, "Dense", (outputs,), *sizes)


def net(*layers):
    return Cost("net", 1, layers)


def vgg(blocks, image=224):
    """VGG by the table of its paper: 3 x 3 convolutions, pooling after each block, three dense."""
    layers, side, channels = [], image, 3
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


VGG19 = vgg([(2, 64), (2, 128), (4, 256), (4, 512), (4, 512)])
VGG16 = vgg([(2, 64), (2, 128), (3, 256), (3, 512), (3, 512)])


def test_nets_of_this_test_have_the_published_parameters():
    assert VGG19.trainable == 143_667_240
    assert VGG16.trainable == 138_357_544


@pytest.mark.parametrize("cost", [VGG16, VGG19], ids=["vgg16", "vgg19"])
def test_vgg_on_8_ranks_has_the_shape_of_tofus_answer(cost):
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
    planner = layout_planner._Planner(cost, 4, USUAL, 32, 8, 16)
    by_layer = planner.by_layer()

    def seconds(way):
        total, before = 0.0, None
        for (group, input_bytes), tensor in zip(planner.groups, way, strict=True):
            data = 4 // tensor
            weights = 4 * group[0].trainable / tensor
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


def test_times_of_data_and_tensor_are_those_of_the_ring():
    machine = RankSpeeds(1e12, 1e-6, 1e9, 1e12)
    cost = net(layer("a", 0, 100, 10_000, 10_000), layer("b", 0, 50, 5_000, 5_000))
    found = {one.name: one.exchange_s for one in layout_planner.plan_layout(cost, 2, machine, 8)}
    data = 2 * 0.5 * 4 * 15_000 / 1e9 + 2 * 2 * 1e-6
    assert found["data 2"] == pytest.approx(data)
    tensor = 2 * 0.5 * 8 * 400 / 1e9 + 2 * 2 * 1e-6
    assert found["tensor 2"] == pytest.approx(tensor)
    (alone,) = layout_planner.plan_layout(cost, 1, machine, 8)
    assert alone.exchange_s == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ranks": 0}, "`ranks` must be a whole number of at least 1"),
        ({"global_batch": 3}, "`global_batch` must be at least the 4 ranks, got 3"),
        ({"machine": RankSpeeds(0.0, 0.0, 1.0, 1.0)}, "`machine.flops_per_s` must be a positive"),
        ({"net": net(layer("a", 0, 5, 0, 0))}, "`net` must have trainable weights"),
    ],
)
def test_what_makes_no_sense_is_refused(change, words):
    usual = {"net": VGG16, "ranks": 4, "machine": USUAL, "global_batch": 8}
    with pytest.raises(ValueError, match=words):
        layout_planner.plan_layout(**{**usual, **change})
