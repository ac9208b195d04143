"""The pictures of sequences show what goes in, what comes out, and what waits for what.

Tests dlguide.diagrams.sequences.
"""

import pytest

from dlguide import diagrams


def words(figure):
    return figure._repr_html_().split('alt="')[1].split('"')[0]


def texts(axes):
    return [text.get_text() for text in axes.texts if text.get_text()]


def test_every_shape_has_a_box_for_each_input_state_and_output():
    figure = diagrams.sequences()
    # inputs + states + outputs, as the names of the shapes say
    assert [len(axes.patches) for axes in figure.axes] == [1 + 1 + 1, 1 + 3 + 3, 3 + 3 + 1, 9, 8]
    for axes, name in zip(
        figure.axes,
        ("one to one", "one to many", "many to one", "many to many", "many to many"),
        strict=True,
    ):
        assert texts(axes)[0].startswith(name)
    assert "many to one: 3 in, 1 out, such as past years, the next one" in words(figure)


@pytest.mark.parametrize("steps", [2, 5, 8])
def test_states_come_one_after_the_other_and_attention_in_one_round(steps):
    chain, together = diagrams.dependencies(steps).axes
    rounds = [[int(one) for one in texts(axes) if one.isdigit()] for axes in (chain, together)]
    assert rounds == [list(range(1, steps + 1)), [1] * steps]
    # an arrow from each input and each state before; and one for each pair of a step and an earlier
    arrows = [sum(hasattr(one, "arrow_patch") and one.arrow_patch is not None for one in axes.texts)
              for axes in (chain, together)]  # fmt: skip
    assert arrows == [steps + steps - 1, steps * (steps + 1) // 2]


def test_a_single_step_waits_for_nothing():
    with pytest.raises(ValueError, match="`steps` must be a whole number of at least 2, got 1"):
        diagrams.dependencies(1)
