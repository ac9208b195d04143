"""Rows of pictures show every image, where and in the colours that were asked for.

Tests dlguide.plots.pictures.
"""

import numpy as np
import pytest

from dlguide import plots

RANDOM = np.random.default_rng(0)


def words(figure):
    return figure._repr_html_().split('alt="')[1].split('"')[0]


def drawn(figure):
    return figure.axes[0].images


def test_images_fill_rows_from_the_left_and_do_not_overlap():
    images = RANDOM.random((7, 4, 4))
    shown = drawn(plots.pictures(images, columns=4))
    boxes = [np.reshape(each.get_extent(), (2, 2)) for each in shown]  # x from to, y from to
    rows = [round(float(box[1].min()), 6) for box in boxes]
    assert [rows.index(row) for row in rows] == [0, 0, 0, 0, 4, 4, 4]
    lefts = [float(box[0][0]) for box in boxes]
    assert lefts[:4] == sorted(lefts[:4])
    assert lefts[4] == lefts[0]
    for one in range(7):
        for other in range(one):
            apart = [
                max(boxes[one][axis].min(), boxes[other][axis].min())
                >= min(boxes[one][axis].max(), boxes[other][axis].max())
                for axis in (0, 1)
            ]
            assert any(apart)
    for image, each in zip(images, shown, strict=True):
        assert np.array_equal(each.get_array(), image)


def test_grey_ones_may_have_a_channel_and_coloured_ones_stay_coloured():
    grey, coloured = RANDOM.random((2, 5, 4, 1)), RANDOM.random((2, 5, 4, 3))
    assert drawn(plots.pictures(grey))[0].get_array().shape == (5, 4)
    assert np.allclose(drawn(plots.pictures(coloured))[1].get_array(), coloured[1])


def test_unit_scale_is_the_same_for_all_and_divides_bytes():
    images = np.array([[[0, 51]], [[102, 255]]], np.uint8)
    shown = drawn(plots.pictures(images))
    assert [each.get_clim() for each in shown] == [(0.0, 1.0)] * 2
    assert np.allclose(shown[0].get_array(), [[0.0, 0.2]])
    noisy = drawn(plots.pictures(np.array([[[-0.5, 1.5]]])))[0]
    assert noisy.to_rgba(-0.5) == noisy.to_rgba(0.0)
    assert noisy.to_rgba(1.5) == noisy.to_rgba(1.0)


def test_own_scale_is_each_image_s_range():
    shown = drawn(plots.pictures([[[1.0, 5.0]], [[-2.0, 2.0]], [[3.0, 3.0]]], scale="own"))
    assert [each.get_clim() for each in shown] == [(1, 5), (-2, 2), (3, 4)]


def test_signed_scale_is_one_around_zero_and_tells_the_sign_by_colour():
    shown = drawn(plots.pictures([[[0.5, -0.1]], [[-2.0, 0.0]]], scale="signed"))
    assert [each.get_clim() for each in shown] == [(-2, 2)] * 2
    red, _green, blue, _alpha = shown[0].to_rgba(2.0)
    assert red > blue
    red, _green, blue, _alpha = shown[0].to_rgba(-2.0)
    assert blue > red
    assert min(shown[0].to_rgba(0.0)) > 0.95


def test_titles_stand_above_their_images_and_rows_have_theirs():
    figure = plots.pictures(
        RANDOM.random((4, 3, 3)), titles=list("abcd"), columns=2, row_titles=["noisy", "clean"]
    )
    axes = figure.axes[0]
    places = {text.get_text(): text.get_position() for text in axes.texts}
    for title, image in zip("abcd", axes.images, strict=True):
        left, right, bottom, top = image.get_extent()
        assert left < places[title][0] < right
        assert places[title][1] < top < bottom  # y grows downwards
    for name, image in (("noisy", axes.images[0]), ("clean", axes.images[2])):
        left, _right, bottom, top = image.get_extent()
        assert places[name][0] < left
        assert top < places[name][1] < bottom
    said = words(figure)
    assert said == "4 pictures in 2 rows of 2; rows: noisy, clean; titles: a, b, c, d."


def test_labels_of_a_data_set_are_titles():
    axes = plots.pictures(RANDOM.random((2, 3, 3)), titles=np.array([7, 0])).axes[0]
    assert [text.get_text() for text in axes.texts] == ["7", "0"]


def test_own_words_and_a_file(tmp_path):
    path = tmp_path / "digits.png"
    figure = plots.pictures(RANDOM.random((2, 3, 3)), path=path, alt="two squares")
    assert words(figure) == "two squares"
    assert path.stat().st_size > 500


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"images": []}, "`images` must hold at least one"),
        ({"images": np.zeros((2, 3, 3, 2))}, "`images` must be images of"),
        ({"images": np.zeros(5)}, "`images` must be images of"),
        ({"images": np.zeros((1, 0, 3))}, "`images` must have pixels"),
        ({"images": np.zeros((2, 3, 3)), "titles": ["one"]}, "`titles` must be 2"),
        ({"images": np.zeros((2, 3, 3)), "row_titles": ["a", "b"]}, "`row_titles` must be 1"),
        ({"images": np.zeros((2, 3, 3)), "columns": 0}, "`columns` must be a whole number"),
        ({"images": np.zeros((2, 3, 3)), "scale": "log"}, "`scale` must be one of"),
        ({"images": np.zeros((2, 3, 3, 3)), "scale": "signed"}, "`scale` must be unit or own"),
    ],
)
def test_what_cannot_be_drawn_is_refused(arguments, text):
    with pytest.raises(ValueError, match=text):
        plots.pictures(**arguments)
