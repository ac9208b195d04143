"""Pictures and films of predicted frames show what they were given."""

import io

import numpy as np
import pytest
from PIL import Image

from dlguide import plots
from dlguide.plots import video

CLIPS = np.random.default_rng(1).integers(0, 256, (2, 6, 16, 16, 3)).astype(np.uint8)
ROWS = {"truth": CLIPS, "repeat": CLIPS[:, ::-1]}


def test_a_row_for_each_predictor_and_a_column_for_each_frame(tmp_path):
    drawn = plots.predicted_frames(ROWS, 1, tmp_path / "frames.png")
    images = [image.get_array() for image in drawn.axes[0].get_images()]
    assert len(images) == 12
    assert np.allclose(images[0], CLIPS[1, 0] / 255)
    assert np.allclose(images[6], CLIPS[1, 5] / 255)
    assert {text.get_text() for text in drawn.axes[0].texts} == {"truth", "repeat"}
    assert (tmp_path / "frames.png").stat().st_size > 0


def test_scores_are_drawn_frame_by_frame():
    drawn = plots.frame_scores({"flow": ([20, 19], [0.8, 0.7]), "GAN": ([22, 21], [0.9, 0.8])})
    left, right = drawn.axes
    assert [list(line.get_ydata()) for line in left.lines] == [[20, 19], [22, 21]]
    assert list(right.lines[1].get_xdata()) == [1, 2]
    assert left.get_ylabel() == "PSNR (dB)"


def test_growth_has_a_line_for_each_resolution():
    drawn = plots.growth([0.02, 0.04, 0.03], [8, 16, 16])
    lines = drawn.axes[0].lines
    assert [list(line.get_xdata()) for line in lines] == [[1], [2, 3]]
    assert np.allclose(lines[1].get_ydata(), [4, 3])


def test_shares_add_up_to_a_whole_step():
    drawn = plots.shares([("ours", 1e6, 0.09, 0.01), ("guide", 8e8, 0.5, 0.5)])
    heights = [bar.get_height() for bar in drawn.axes[0].patches]
    assert np.allclose(heights, [90, 10, 50, 50])


def test_film_has_all_frames_side_by_side_and_runs_for_ever(tmp_path):
    data = plots.film(ROWS, 0, tmp_path / "film.gif", seconds=0.1)
    assert (tmp_path / "film.gif").read_bytes() == data
    with Image.open(io.BytesIO(data)) as film:
        assert (film.n_frames, film.info["loop"], film.info["duration"]) == (6, 0, 100)
        page = np.asarray(film.convert("RGB")).astype(int)
    # the corner of the first frame, enlarged eight times, is that pixel but for the palette
    assert np.abs(page[:6, :6].reshape(-1, 3) - CLIPS[0, 0, 0, 0]).max() < 40
    assert page.shape[1] == 2 * video._FRAME + video._GAP


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: plots.predicted_frames({}), "`frames` must name a row"),
        (lambda: plots.predicted_frames(ROWS, 2), "`clip` must be below the 2 clips of 'truth'"),
        (lambda: plots.predicted_frames({**ROWS, "x": CLIPS[:, :3]}), "as many frames in each row"),
        (lambda: plots.film({**ROWS, "x": CLIPS[:, :3]}), "as many frames each"),
        (lambda: plots.film({}), "`frames` must name a predictor"),
        (lambda: plots.growth([0.1], []), "`sizes` must be 1, at least 1"),
        (lambda: plots.frame_scores({}), "`scores` must hold 1 to 6"),
        (lambda: plots.shares([]), "`rows` must hold at least one"),
    ],
)
def test_what_cannot_be_drawn_is_refused(call, text):
    with pytest.raises(ValueError, match=text):
        call()
