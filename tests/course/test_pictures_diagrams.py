"""Diagrams draw what they are given and say in words what they show."""

from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlcourse import pictures, recipes_2019
from dlcourse.pictures import difference
from dlguide.machine import imagine, threads


def texts(axes):
    return [text.get_text() for text in axes.texts if text.get_text()]


def words(figure):
    return figure._repr_html_().split('alt="')[1].split('"')[0]


ENGINES = [{"rank": rank, "pid": 100 + rank, "cpus": [rank]} for rank in range(3)]


def test_processes_has_the_kernel_and_every_rank_with_its_process_and_cores():
    figure = pictures.processes(ENGINES)
    (axes,) = figure.axes
    assert len(axes.patches) == 4
    assert "rank 2\nprocess 102\nCPU 2\nits own memory" in texts(axes)
    assert "functions to 3 ranks" in words(figure)


def test_exchange_draws_who_has_what_before_and_after():
    panels = {"bcast": ([7, None], [7, 7], [(0, 0), (0, 1)]), "barrier": ([1, 2], [1, 2], [])}
    figure = pictures.exchange(panels)
    bcast, barrier = figure.axes
    assert bcast.get_title() == "bcast"
    assert texts(bcast).count("7") == 3
    assert len(bcast.patches) == 4
    # An arrow is a text without words.
    assert len(bcast.texts) - len(texts(bcast)) - 1 == 2
    assert len(barrier.texts) - len(texts(barrier)) == 0
    assert "bcast: before rank 0 7, rank 1 nothing; after rank 0 7, rank 1 7." in words(figure)


def test_timelines_say_who_waits_and_what_is_never_reached():
    rows = [[("Recv", "waits"), ("Send", "never")], [("Send", "done")]]
    figure = pictures.timelines({"stuck": rows})
    (axes,) = figure.axes
    assert [patch.get_linestyle() for patch in axes.patches] == ["-", "--", "-"]
    rows = "rank 0 Recv (waits indefinitely), then Send (never reached); rank 1 Send."
    assert rows in words(figure)


GUIDE = {"OMP_NUM_THREADS": 22, "MLSL_NUM_SERVERS": 2, "MLSL_SERVER_AFFINITY": "39,38,43,42"}


def cells(figure):
    """Each cell of a map: the CPU's number and the rank's above it, and the cell's style."""
    (axes,) = figure.axes
    plain = [text for text in axes.texts if not text.get_text().startswith("socket")]
    patches = [patch for patch in axes.patches if patch.get_fill()]
    pairs = zip(plain[::2], plain[1::2], patches, strict=True)
    return {int(cpu.get_text()): (rank.get_text(), patch) for rank, cpu, patch in pairs}


@pytest.mark.parametrize(("sockets", "cores", "siblings"), [(1, 2, 1), (2, 24, 1), (2, 24, 2)])
def test_the_map_of_a_plan_has_every_cpu_with_its_rank(sockets, cores, siblings):
    node = imagine(sockets, cores, siblings)
    plan = threads.plan(node, 2)
    drawn = cells(pictures.affinity(plan, node))
    assert sorted(drawn) == [core.cpu for core in node.cores]
    for rank, cpus in enumerate(plan.cpus):
        assert {drawn[cpu][0] for cpu in cpus} == {str(rank)}
    colours = {rank: drawn[cpus[0]][1].get_facecolor() for rank, cpus in enumerate(plan.cpus)}
    assert colours[0] != colours[1]


def test_communication_cores_are_hatched_and_shared_ones_framed():
    node = imagine(2, 24, 2)
    figure = pictures.affinity(recipes_2019.explain("granularity=fine,compact,1,0", node, **GUIDE))
    drawn = cells(figure)
    assert {cpu for cpu, (_, patch) in drawn.items() if patch.get_hatch()} == {38, 39, 42, 43}
    assert {cpu for cpu, (_, patch) in drawn.items() if patch.get_linewidth() > 2} == {
        *(38, 39, 42, 43)
    }
    assert drawn[38][0] == "0+1"
    assert drawn[47][0] == ""
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert labels[1:] == ["communicates", "free", "shared"]
    assert "Rank 0 communicates on socket 1, NUMA node 1: CPUs 38-39." in words(figure)
    assert "Rank 1 computes on socket 1, NUMA node 1: CPUs 24-45." in words(figure)


def test_pipeline_draws_a_box_for_every_cell_and_says_the_order():
    cells = [
        SimpleNamespace(stage=stage, microbatch=0, kind=kind, start_s=start, end_s=start + 1.0)
        for stage, kind, start in ((0, "forward", 0), (1, "forward", 1), (1, "backward", 2))
    ]
    figure = pictures.pipeline({"predicted": cells, "measured": cells}, unit_s=2.0, unit="2 s")
    for axes, title in zip(figure.axes, ("predicted", "measured"), strict=True):
        assert axes.get_title() == title
        boxes = [patch for patch in axes.patches if patch.get_width() == 0.5]
        assert [(box.get_x(), box.get_y()) for box in boxes] == [(0, -0.4), (0.5, 0.6), (1, 0.6)]
        assert texts(axes) == ["0"] * 3
        assert axes.get_xlim() == (0, 1.5)
    assert figure.axes[-1].get_xlabel() == "time (2 s)"
    (legend,) = figure.legends
    labels = [text.get_text() for text in legend.get_texts()]
    assert labels == ["forward", "backward", "a backward pass begins", "waits"]
    assert "measured: stage 0: f0; stage 1: f0 b0." in words(figure)


# --- sequences ------------------------------------------------------------------------------------


def test_every_shape_has_a_box_for_each_input_state_and_output():
    figure = pictures.sequences()
    # inputs + states + outputs, as the names of the shapes say
    assert [len(axes.patches) for axes in figure.axes] == [1 + 1 + 1, 1 + 3 + 3, 3 + 3 + 1, 9, 8]
    for axes, name in zip(
        figure.axes,
        ("one to one", "one to many", "many to one", "many to many", "many to many"),
        strict=True,
    ):
        assert texts(axes)[0].startswith(name)
    assert "many to one: 3 in, 1 out, such as past years, the next one" in words(figure)


def test_states_come_one_after_the_other_and_attention_in_one_round():
    steps, (chain, together) = 5, pictures.dependencies().axes
    rounds = [[int(one) for one in texts(axes) if one.isdigit()] for axes in (chain, together)]
    assert rounds == [list(range(1, steps + 1)), [1] * steps]
    # an arrow from each input and each state before; and one for each pair of a step and an earlier
    arrows = [sum(hasattr(one, "arrow_patch") and one.arrow_patch is not None for one in axes.texts)
              for axes in (chain, together)]  # fmt: skip
    assert arrows == [steps + steps - 1, steps * (steps + 1) // 2]


# --- storage --------------------------------------------------------------------------------------


def test_stripe_lies_on_target_of_its_number_modulo_the_count():
    figure = pictures.striping({"wide": [(7, 3), (2, 2)], "narrow": [(3, 1)]})
    said = words(figure)
    # file a begins at OST 0, file b at OST 1
    assert (
        "wide: OST 0 has a0 a3 a6, OST 1 has a1 a4 b0, OST 2 has a2 a5 b1, OST 3 has nothing"
        in said
    )
    assert "narrow: OST 0 has a0 a1 a2, OST 1 has nothing" in said
    assert [len(axes.patches) for axes in figure.axes] == [9, 3]


# --- two programs ---------------------------------------------------------------------------------


TEXTS = st.lists(st.sampled_from("abcd"), max_size=12).map("\n".join)


def side(found, marks):
    return [text for mark, text in found.lines if mark in marks]


@given(TEXTS, TEXTS)
def test_marked_lines_turn_one_text_into_the_other(before, after):
    found = difference(before, after)
    old, new = Counter(before.splitlines()), Counter(after.splitlines())
    removed, added = (Counter(side(found, mark)) for mark in "-+")
    assert old - removed == new - added
    assert not removed - old
    assert not added - new


def test_what_is_in_both_is_cut():
    before = "\n".join("123456789")
    lines = difference(before, before.replace("5", "five")).lines
    assert lines == (("…", ""), ("-", "5"), ("+", "five"), ("…", ""))


def test_html_escapes_the_text_and_shows_the_marks():
    shown = difference("a < b", "a <b>")._repr_html_()
    assert "- a &lt; b" in shown
    assert "+ a &lt;b&gt;" in shown
    assert "<b>" not in shown
