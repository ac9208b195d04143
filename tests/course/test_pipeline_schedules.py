"""Schedules of a pipeline: rules, formulas, and a GPT trained as by one process.

Tests dlcourse.parallel.pipeline_schedule and dlcourse.parallel.pipeline with these schedules.
"""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lanes import long
from on_ranks import on_ranks

from dlcourse.parallel import pipeline, pipeline_schedule
from dlcourse.parallel.pipeline_schedule import Work


@st.composite
def schedules(draw):
    name = draw(st.sampled_from(sorted(pipeline_schedule.ORDERS)))
    stages, microbatches = draw(st.integers(1, 6)), draw(st.integers(1, 9))
    if name == "interleaved":
        return name, stages, stages * draw(st.integers(1, 3)), draw(st.integers(2, 4))
    return name, stages, microbatches, 1


@given(schedule=schedules())
def test_every_schedule_does_all_work_once_after_what_it_needs(schedule):
    name, stages, microbatches, chunks = schedule
    cells = pipeline_schedule.predict(name, stages, microbatches, 1.0, 2.0, 0.25, chunks)
    found = {(c.kind, c.chunk * stages + c.stage, c.microbatch): c for c in cells}
    kinds = ("forward", "backward", "weights")[: 3 if name == "zb-h1" else 2]
    pieces = stages * chunks
    assert sorted(found) == sorted(
        (kind, piece, m) for kind in kinds for piece in range(pieces) for m in range(microbatches)
    )
    assert len(found) == len(cells)
    wait = 0.25 if stages > 1 else 0.0
    for (kind, piece, m), cell in found.items():
        if kind == "forward" and piece:
            assert found[kind, piece - 1, m].end_s + wait <= cell.start_s + 1e-9
        if kind == "backward":
            assert found["forward", piece, m].end_s <= cell.start_s
            if piece < pieces - 1:
                assert found[kind, piece + 1, m].end_s + wait <= cell.start_s + 1e-9
        if kind == "weights":
            assert found["backward", piece, m].end_s <= cell.start_s
    for stage in range(stages):
        row = [c for c in cells if c.stage == stage]
        assert all(two.start_s >= one.end_s for one, two in itertools.pairwise(row))


TIMES = st.floats(0.01, 10.0)


@given(st.integers(1, 8), st.integers(1, 20), TIMES, TIMES, st.floats(0.0, 1.0))
def test_the_bubble_of_zb_h1_is_exact_for_all_times(stages, microbatches, forward, backward, share):
    weights = share * backward
    times = {"forward_s": forward, "backward_s": backward, "weights_s": weights}
    cells = pipeline_schedule.predict("zb-h1", stages, microbatches, **times)
    formula = pipeline_schedule.bubble(stages, microbatches, "zb-h1", **times)
    assert pipeline_schedule.idle_share(cells) >= formula - 1e-9
    if microbatches >= stages:
        assert pipeline_schedule.idle_share(cells) == pytest.approx(formula, abs=1e-9)


@given(schedule=schedules())
def test_bubbles_and_held_microbatches_are_those_of_the_formulas(schedule):
    name, stages, microbatches, chunks = schedule
    cells = pipeline_schedule.predict(name, stages, microbatches, 1.0, 2.0, chunks=chunks)
    share = pipeline_schedule.bubble(stages, microbatches, name, chunks)
    if name == "zb-h1" and microbatches < stages:
        assert pipeline_schedule.idle_share(cells) >= share - 1e-9
    else:
        assert pipeline_schedule.idle_share(cells) == pytest.approx(share, abs=1e-9)
    held = [pipeline_schedule.held(name, s, stages, microbatches, chunks) for s in range(stages)]
    assert held == [most / chunks for most in pipeline_schedule.in_flight(cells)]


def test_the_orders_of_the_papers_figures():
    """Narayanan et al. 2021, figure 4 (below), device 1; Qi et al. 2023, figure 3, device 4."""
    row = pipeline_schedule.order("interleaved", 0, 4, 8, 2)
    assert [(w.microbatch, w.chunk) for w in row[:10]] == [
        *((m, 0) for m in range(4)), *((m, 1) for m in range(4)), (4, 0), (5, 0),
    ]  # fmt: skip
    assert row[10:13] == [Work("forward", 6, 0), Work("backward", 0, 1), Work("forward", 7, 0)]
    row = pipeline_schedule.order("zb-h1", 3, 4, 8)
    assert [f"{w.kind[0]}{w.microbatch}" for w in row[:9]] == [
        *("f0", "b0", "f1", "b1", "f2", "b2", "f3", "b3", "w0"),
    ]  # fmt: skip


def test_any_order_can_be_simulated_and_one_that_waits_for_itself_is_refused():
    orders = [[Work("forward", 0), Work("backward", 0)]] * 2
    seconds = {"forward": [1.0, 2.0], "backward": [4.0, 8.0]}
    cells = pipeline_schedule.simulate(orders, seconds, message_s=0.5)
    assert [(c.start_s, c.end_s) for c in cells] == [(0, 1), (12, 16), (1.5, 3.5), (3.5, 11.5)]
    same = pipeline_schedule.simulate(orders, lambda stage, work: seconds[work.kind][stage], 0.5)
    assert same == cells
    with pytest.raises(ValueError, match=r"let every stage go on, got .*stage 1: \('backward', 0"):
        pipeline_schedule.simulate([orders[0], orders[1][::-1]], seconds)
    alone = [Work("forward", 0), Work("weights", 0), Work("backward", 0)]
    with pytest.raises(ValueError, match=r"stage 0: \('weights', 0"):
        pipeline_schedule.simulate([alone], seconds)


def gpt_in_stages():
    import os

    os.environ["KERAS_BACKEND"] = "tensorflow"
    import keras
    import numpy as np
    import tensorflow as tf
    from mpi4py import MPI

    from dlcourse import nets
    from dlcourse.parallel import pipeline_schedule
    from dlcourse.parallel.pipeline import PipelineParallel

    comm, steps, found = MPI.COMM_WORLD, 2, {}
    tf.config.run_functions_eagerly(comm.size > 2)  # tracing takes long where ranks share cores
    p, random = comm.size, np.random.default_rng(3)
    sizes = {"length": 6, "vocabulary": 11, "width": 16, "heads": 4, "layers": p}
    batch, parts = 4 * p, 2 * p
    tokens = random.integers(0, 11, (batch, 7)).astype("i4")
    inputs, labels = tokens[:, :-1], tokens[:, 1:]
    sgd = lambda: keras.optimizers.SGD(0.3, momentum=0.9)  # noqa: E731

    def of_tokens(labels, logits):
        each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        return tf.reduce_mean(each, axis=-1)

    model, opt = nets.build("gpt", seed=4, dtype="float64", **sizes), sgd()
    begun = {weight.path: weight.numpy() for weight in model.weights}
    for _ in range(steps):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(of_tokens(labels, model(inputs)))
        grads = tape.gradient(loss, [v.value for v in model.trainable_variables])
        opt.apply([tf.convert_to_tensor(g) for g in grads], model.trainable_variables)
    right = {weight.path: weight.numpy() for weight in model.weights}

    for schedule, chunks in (("1f1b", 1), ("interleaved", 2)):
        net = nets.build("gpt", seed=4, dtype="float64", **sizes)
        one = PipelineParallel(net, comm, sgd, parts, schedule, loss=of_tokens, chunks=chunks)
        for _ in range(steps):
            step = one.step(inputs, labels)
        came = one.weights()
        scale = max(np.abs(value).max() for value in right.values())
        predicted = pipeline_schedule.predict(schedule, p, parts, chunks=chunks)
        order = [(c.stage, c.kind, c.microbatch, c.chunk) for c in step.cells]
        places = [{*range(r, p * chunks, p)} for r in range(p)]
        inputs_of = [cost.input_bytes for cost in one.costs]
        # a piece sends on what the next one reads, and back what it reads itself
        sent = [a + b for a, b in zip([0, *inputs_of[1:]], [*inputs_of[1:], 0], strict=True)]
        found[schedule] = {
            "apart": float(max(np.abs(came[path] - right[path]).max() for path in right) / scale),
            "loss": abs(step.loss - float(loss)),
            "paths": sorted(came) == sorted(right),
            "moved": float(min(np.abs(right[path] - begun[path]).max() for path in right)),
            "order": order == [(c.stage, c.kind, c.microbatch, c.chunk) for c in predicted],
            "held": list(step.held) == list(pipeline_schedule.in_flight(predicted)),
            "sent": list(step.sent_bytes),
            "bytes": [batch * sum(sent[place] for place in own) for own in places],
        }  # fmt: skip
    return found


@pytest.mark.parametrize("ranks", [2, *long(3, 1, 4)])
def test_a_gpt_in_stages_is_trained_as_by_one_process(tmp_path, ranks):
    everyone = on_ranks(ranks, gpt_in_stages, tmp_path)
    assert all(one == everyone[0] for one in everyone)
    assert len(everyone[0]) == 2
    for name, case in everyone[0].items():
        assert case["apart"] <= 1e-12, (name, case)
        assert case["loss"] <= 1e-12, (name, case)
        assert case["moved"] > 1e-6, (name, case)
        assert all(case[key] for key in ("paths", "order", "held")), (name, case)
        assert case["sent"] == case["bytes"], name


def products_of_split_stages():
    import os

    os.environ["KERAS_BACKEND"] = "tensorflow"
    import keras
    import numpy as np

    from dlcourse.parallel.pipeline import _SplitStage
    from dlcourse.parallel.pipeline_schedule import Work
    from dlguide.training.step import crossentropy

    found = {}
    for activation in ("relu", "tanh", "linear"):
        start = x = keras.Input((6,))
        for units in (5, 4):
            x = keras.layers.Dense(units, activation)(x)
        stage = _SplitStage(keras.Model(start, x), 1, 3, crossentropy, False)
        stage.compute(Work("forward", 0), np.ones((3, 6), "f4"), None)
        stage.compute(Work("backward", 0), np.ones((3, 4), "f4"), None)
        graph = stage._weights.get_concrete_function(*stage.held[0]).graph
        needed, todo = {}, [tensor.op for tensor in graph.outputs]
        while todo:  # what the gradients depend on; the rest is not run
            op = todo.pop()
            if op.name not in needed:
                needed[op.name] = op.type
                todo += [tensor.op for tensor in op.inputs]
        found[activation] = list(needed.values()).count("MatMul")
    return found


def test_a_split_stage_computes_no_product_twice(tmp_path):
    (found,) = on_ranks(1, products_of_split_stages, tmp_path)
    assert set(found.values()) == {2}  # one for each layer


def test_passes_are_timed_by_the_kinds_of_their_schedule():
    cells = pipeline_schedule.predict("zb-h1", 2, 4, 1.0, 3.0, weights_s=1.0)
    step = pipeline.PipelineStep(0.0, cells, (2, 2), (0, 0))
    times = {"forward": [1, 1], "backward": [2, 2], "weights": [1, 1]}
    assert pipeline.cell_seconds([step]) == times
    plain = pipeline.PipelineStep(0.0, pipeline_schedule.predict("1f1b", 2, 4), (2, 1), (0, 0))
    assert pipeline.cell_seconds([plain]) == {"forward": [1, 1], "backward": [2, 2]}
