"""Photographs of every usual kind are read as red, green, blue; what is none is refused."""

import io
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dlcourse.components import lack
from dlcourse.usecases import photographs
from dlguide import commands

PROGRAM = Path(__file__).resolve().parents[2] / "notebooks" / "programs" / "kmeans.py"
COLOUR = np.random.default_rng(3).integers(0, 256, (9, 7, 3), np.uint8)


def saved(folder, image, name, **options):
    image.save(folder / name, **options)
    return folder / name


@pytest.mark.parametrize("name", ["a.png", "a.tiff", "named_wrongly.jpg"])
def test_lossless_file_gives_its_pixels(tmp_path, name):
    kind = "PNG" if name.endswith("jpg") else None
    path = saved(tmp_path, Image.fromarray(COLOUR), name, format=kind)
    np.testing.assert_array_equal(photographs.read(path), COLOUR)


def test_photograph_that_the_camera_turned_is_turned_back(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    path = saved(tmp_path, Image.fromarray(COLOUR), "turned.png", exif=exif)
    np.testing.assert_array_equal(photographs.read(path), np.rot90(COLOUR, -1))


def test_damaged_or_missing_picture_is_refused_with_its_name(tmp_path):
    large = Image.fromarray(np.tile(COLOUR, (30, 30, 1)))
    for name, keep in (("cut.jpg", -2000), ("cut.png", 1000), ("empty.png", 0)):
        path = saved(tmp_path, large, name)
        path.write_bytes(path.read_bytes()[:keep])
        with pytest.raises(ValueError, match=rf"picture that can be read, got .*{name}.*Pillow"):
            photographs.read(path)
    with pytest.raises(ValueError, match=r"picture that can be read, got .*none.png"):
        photographs.read(tmp_path / "none.png")


def test_png_keeps_every_pixel_with_a_palette_or_without():
    many = np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8)
    for pixels in (many // 128 * 200, many):
        contents = photographs.encoded(pixels)
        np.testing.assert_array_equal(photographs.read(io.BytesIO(contents)), pixels)


@pytest.mark.skipif(bool(lack("daal4py")), reason=lack("daal4py"))
def test_program_draws_a_photograph_on_ranks_and_prints_its_error(tmp_path):
    path = saved(tmp_path, Image.fromarray(COLOUR), "given.png")
    words = ["--real", path, "--colours", 3, 5, "--output", tmp_path / "drawn"]
    done = commands.run([sys.executable, PROGRAM, "--ranks", 2, *words], timeout_s=120)
    assert done.ok, done.tail()
    rows = [line.split() for line in done.output.splitlines()]
    for count in (3, 5):
        drawn = photographs.read(tmp_path / "drawn" / f"{count}_colours.png")
        assert photographs.colours(drawn) == count
        error = np.sqrt(np.mean((drawn.astype(float) - COLOUR) ** 2))
        (printed,) = [row[1] for row in rows if row[:1] == [str(count)]]
        assert float(printed) == pytest.approx(error, abs=0.01)
