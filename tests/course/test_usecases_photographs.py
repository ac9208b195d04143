"""Photographs of every usual kind are read as red, green, blue; what is none is refused."""

import numpy as np
import pytest
from PIL import Image

from dlcourse.usecases import photographs

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
        np.testing.assert_array_equal(photographs.decoded(contents), pixels)
