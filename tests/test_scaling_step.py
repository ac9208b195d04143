"""A step is the sum of what is not hidden; a training is the sum of its steps and the rest.

Tests dlguide.scaling.step against closed forms, an event-by-event count, and the thesis' own hours.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from dlguide.parallel import overlap
from dlguide.scaling import costs, simulate, step


def test_parts_add_up_to_the_step():
    told = step.predict(0.1, 0.03, workers=4, overlap=0.5, spread=0.02)
    assert told.seconds == pytest.approx(0.1 + 0.02 * 0.1 * costs.slowest(4) + 0.015)
    assert told.efficiency == pytest.approx(0.1 / told.seconds)
    assert told.limited_by == "exchange"
    assert told.images_per_s(32) == pytest.approx(4 * 32 / told.seconds)
    assert math.fsum(told.parts.values()) == pytest.approx(told.seconds)
    assert "4 workers" in str(told)


def test_one_worker_exchanges_nothing_and_waits_for_nobody():
    told = step.predict(0.1, 0.03, workers=1, overlap=0.0, spread=0.5)
    assert told.seconds == 0.1
    assert (told.efficiency, told.limited_by) == (1.0, "compute")


def test_no_more_is_hidden_than_the_backward_pass_is_long():
    told = step.predict(0.3, 1.0, workers=2, overlap=1.0)
    assert told.hidden_s == pytest.approx(0.2)
    assert told.seconds == pytest.approx(0.3 + 0.8)
    assert step.predict(0.3, 0.1, workers=2, overlap=1.0).seconds == pytest.approx(0.3)


@pytest.mark.parametrize("input_s", [0.0, 0.05, 0.13, 0.4])
def test_input_is_a_maximum_with_prefetching_and_a_sum_without(input_s):
    parts = {"compute_s": 0.1, "exchange_s": 0.03, "workers": 2, "input_s": input_s}
    assert step.predict(**parts).seconds == pytest.approx(max(0.13, input_s))
    assert step.predict(**parts, prefetched=False).seconds == pytest.approx(0.13 + input_s)


@pytest.mark.parametrize("workers", [2, 8, 64])
def test_stragglers_are_those_of_the_simulation(workers):
    told = step.predict(1.0, 0.1, workers=workers, spread=0.03)
    seen = simulate.synchronous(simulate.WorkerTimes(workers, 1.0, spread=0.03), 3000, 0.1)
    assert told.seconds == pytest.approx(seen.seconds / 3000, rel=0.005)


@pytest.mark.parametrize("layers", [1, 2, 5, 100])
@pytest.mark.parametrize(("backward", "exchange"), [(1.0, 0.2), (1.0, 1.0), (0.3, 2.0), (0, 1.0)])
def test_equal_layers_are_the_closed_form(layers, backward, exchange):
    each = step.exposed([backward / layers] * layers, [exchange / layers] * layers)
    hidden = backward * (1 - 1 / layers)
    assert each == pytest.approx(max(exchange / layers, exchange - hidden))
    if layers == 1:
        assert each == pytest.approx(exchange)


@pytest.mark.parametrize("seed", range(20))
def test_exposed_time_is_the_maximum_over_layers(seed):
    random = np.random.default_rng(seed)
    b, c = random.exponential(1, (2, random.integers(1, 9)))
    found = max(b[: i + 1].sum() + c[i:].sum() for i in range(len(b))) - b.sum()
    assert step.exposed(list(b), list(c)) == pytest.approx(found)


@pytest.mark.parametrize("seed", range(5))
def test_exposed_time_is_that_of_the_schedule_drawn_in_the_lesson_on_overlap(seed):
    random = np.random.default_rng(seed)
    nbytes = [int(n) for n in random.integers(1000, 10**6, 6)]
    backward = [float(s) for s in random.exponential(1e-3, 6)]
    drawn = overlap.predict([1e-4] * 6, backward, nbytes, "overlapped", 4, 1e-5, 1e9)
    link = costs.Link(1e-5, 1e9)
    exchange = [costs.allreduce("ring", n, 4, link) for n in nbytes]
    # its layers are numbered from the input; the backward pass goes the other way
    ours = step.exposed(backward[::-1], exchange[::-1])
    sent = max(each.end_s for each in drawn.intervals if each.kind == overlap.EXCHANGE)
    assert sent - sum(backward) == pytest.approx(ours)


def test_training_counts_every_step_and_share():
    told = step.training(0.5, 32, 4, samples=1000, epochs=3, evaluated=101, evaluate_image_s=0.01)
    assert told.steps == 3 * 8  # 1000 / 128 = 7.8
    assert told.train_s == 12
    assert told.evaluate_s == pytest.approx(3 * 26 * 0.01)  # the last worker has 23
    whole = step.training(
        0.5, 32, 4, 1000, 3, evaluated=101, evaluate_image_s=0.01, sharded=False, fixed_s=5
    )
    assert whole.seconds == pytest.approx(12 + 3 * 101 * 0.01 + 5)
    assert told.images_per_s == whole.images_per_s == 3000 / 12


def test_node_hours_are_whole_nodes_and_energy_is_their_power():
    told = step.training(3.6, 10, 9, samples=9000 * 10, epochs=1)
    assert told.seconds == 3600
    assert told.node_hours() == 9
    assert told.node_hours(4) == 3
    assert told.kwh(500, workers_per_node=4) == pytest.approx(1.5)


def test_hours_of_the_thesis_are_its_throughput_and_an_evaluation_that_was_not_divided():
    # Thesis, Tables of experiments 4 and 5: 6 days 4 h 16 min; 6 h 36 min; Figure 17: 29.4 times
    one, many, speedup = 6 * 24 + 4 + 16 / 60, 6 + 36 / 60, 29.4
    assert one / many == pytest.approx(22.5, abs=0.05)
    train, whole = step.not_divided(one, many, speedup)
    # the log's own numbers give 5.1 h of training on 32 GPUs
    assert train / speedup == pytest.approx(5.1, rel=0.03)
    # forward again with the parts: 90 epochs of ImageNet, every rank sees all 50 000 images
    images, batch = 1_281_167, 128
    kinds = {"samples": images, "epochs": 90, "evaluated": 50_000}
    step_s = 3600 * train / (90 * math.ceil(images / batch))
    image_s = 3600 * whole / 90 / 50_000
    serial = step.training(step_s, batch, 1, **kinds, evaluate_image_s=image_s)
    slower = step_s * 32 / speedup
    ways = {
        sharded: step.training(
            slower, batch, 32, **kinds, evaluate_image_s=image_s, sharded=sharded
        )
        for sharded in (True, False)
    }
    assert ways[False].speedup(serial) == pytest.approx(22.5, rel=0.005)
    assert ways[True].speedup(serial) == pytest.approx(29.4, rel=0.005)
    # the evaluation of one image is a third of its training, or less: only forward
    assert 1 < (3600 * train / 90 / images) / image_s < 5


def test_times_that_contradict_the_speedup_are_refused():
    with pytest.raises(ValueError, match="`parallel_s` must lie between 10 and 100"):
        step.not_divided(100, 9, 10)
    with pytest.raises(ValueError, match="`parallel_s` must lie"):
        step.not_divided(100, 101, 10)
    with pytest.raises(ValueError, match="`speedup` must be above 1"):
        step.not_divided(100, 50, 1)
    assert step.not_divided(100, 10, 10) == (pytest.approx(100), pytest.approx(0, abs=1e-9))


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: step.predict(0), "compute_s"),
        (lambda: step.predict(1, -1), "exchange_s"),
        (lambda: step.predict(1, workers=0), "workers"),
        (lambda: step.predict(1, overlap=1.1), "overlap"),
        (lambda: step.predict(1, spread=-1), "spread"),
        (lambda: step.predict(1, input_s=math.inf), "input_s"),
        (lambda: step.exposed([], []), "backward_s"),
        (lambda: step.exposed([1], [1, 2]), "exchange_s"),
        (lambda: step.exposed([1, -1], [1, 2]), "backward_s"),
        (lambda: step.training(0, 1, 1, 1), "step_s"),
        (lambda: step.training(1, 0, 1, 1), "batch_per_worker"),
        (lambda: step.training(1, 1, 1, 1, evaluated=-1), "evaluated"),
        (lambda: step.training(1, 1, 1, 1).kwh(0), "watts_per_node"),
        (lambda: step.training(1, 1, 1, 1).node_hours(0), "workers_per_node"),
    ],
)
def test_numbers_out_of_range_are_refused(call, name):
    with pytest.raises(ValueError, match=f"^`{name}` must"):
        call()
