"""Waits instead of computing: what the ranks do is what their lists and layouts say.

Tests dlcourse.waiting_ranks.
"""

from on_ranks import on_ranks

from dlcourse import waiting_ranks
from dlcourse.nets import GPTShape


def waited(stages, parts):
    from mpi4py import MPI

    from dlcourse import waiting_ranks
    from dlcourse.parallel import pipeline_schedule

    chunks = {"gpipe": 1, "1f1b": 1, "interleaved": 2, "zb-h1": 1}
    orders = {
        name: [pipeline_schedule.order(name, s, stages, parts, v) for s in range(stages)]
        for name, v in chunks.items()
    }
    orders["rounds"] = waiting_ranks.in_rounds(stages, parts, stages)
    seconds = {key: {"forward": 0.02, "backward": 0.02, "weights": 0.02} for key in orders}
    found = waiting_ranks.measure_orders(MPI.COMM_WORLD, orders, seconds, repeats=1)
    rows = {}
    for name, (cells,) in found.items():
        cells = sorted(cells, key=lambda cell: cell.start_s)
        did = [
            [(c.kind, c.microbatch, c.chunk) for c in cells if c.stage == stage]
            for stage in range(stages)
        ]
        rows[name] = did, [[tuple(work) for work in row] for row in orders[name]]
        ends = {(c.kind, c.chunk * stages + c.stage, c.microbatch): c.end_s for c in cells}
        last = stages * chunks.get(name, 1) - 1
        early = [
            c
            for c in cells
            if c.kind != "weights"
            and 0
            <= (place := c.chunk * stages + c.stage + (-1 if c.kind == "forward" else 1))
            <= last
            and c.start_s < ends[c.kind, place, c.microbatch]
        ]
        rows[name] += (len(early),)
    return rows


def test_ranks_follow_their_lists_and_wait_for_messages(tmp_path):
    for found in on_ranks(2, waited, tmp_path, stages=2, parts=4):
        for name, (did, wanted, early) in found.items():
            assert [[tuple(work) for work in row] for row in did] == [
                [tuple(work) for work in row] for row in wanted
            ], name
            assert early == 0, name


def test_layers_of_a_gpt_have_its_flops_and_weights():
    net = GPTShape(16, 40, 24, 4, 2, 20, 6)
    layers = waiting_ranks.layers_of(net)
    assert sum(layer[0] for layer in layers) == net.training_flops
    assert sum(layer[1] for layer in layers) == net.parameters


def layout_of(sides):
    from mpi4py import MPI

    from dlcourse.nets import GPTShape
    from dlcourse.waiting_ranks import WaitingLayout

    net = GPTShape(16, 40, 24, 4, 2, 20, 6)
    found = []
    for each in sides:
        layout = WaitingLayout(MPI.COMM_WORLD, net, each, 8 * net.training_flops / 0.04, 8, 2)
        found.append((layout.step(), sum(g.size for g in layout.gradients)))
        layout.free()
    return found


def test_a_layout_waits_for_its_share(tmp_path):
    sides = [(2, 1, 1), (1, 2, 1), (1, 1, 2)]
    one, two = on_ranks(2, layout_of, tmp_path, sides=sides)
    net = GPTShape(16, 40, 24, 4, 2, 20, 6)
    (data, whole), (tensor, half), (pipeline, first) = one
    assert min(data, tensor) >= 0.02  # half of 0.04 s
    assert pipeline >= 0.02 * 3 / 2  # and the bubble of two microbatches
    assert whole == net.parameters
    assert half <= whole / 2
    assert first + two[2][1] == whole
