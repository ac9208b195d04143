"""Photographs of every usual kind are read as red, green, blue; what is none is refused."""

import io

import numpy as np
import pytest
from PIL import Image

from dlcourse.usecases.kmeans import photographs

COLOUR = np.random.default_rng(3).integers(0, 256, (9, 7, 3), np.uint8)


def saved(folder, image, name, **options):
    image.save(folder / name, **options)
    return folder / name


@pytest.mark.parametrize("name", ["a.png", "a.bmp", "a.tiff", "named_wrongly.jpg"])
def test_lossless_file_gives_its_pixels(tmp_path, name):
    kind = "PNG" if name.endswith("jpg") else None
    path = saved(tmp_path, Image.fromarray(COLOUR), name, format=kind)
    np.testing.assert_array_equal(photographs.read(path), COLOUR)
    np.testing.assert_array_equal(photographs.read(str(path)), COLOUR)


def test_grey_has_three_equal_channels_also_with_16_bits(tmp_path):
    grey = COLOUR[..., 0]
    right = np.repeat(grey[..., None], 3, axis=2)
    path = saved(tmp_path, Image.fromarray(grey), "grey.png")
    np.testing.assert_array_equal(photographs.read(path), right)
    deep = Image.fromarray(grey.astype(np.uint16) * 257)
    path = saved(tmp_path, deep, "deep.png")
    np.testing.assert_array_equal(photographs.read(path), right)


@pytest.mark.parametrize("level", [0, 1, 200, 255, 40_000, 65_535])
def test_16_bits_a_channel_mean_the_same_whatever_else_is_in_the_picture(tmp_path, level):
    deep = np.full((4, 4), level, np.uint16)
    big_end = Image.frombytes("I;16B", (4, 4), deep.astype(">u2").tobytes())
    for image, name in ((Image.fromarray(deep), "a.png"), (big_end, "b.tiff")):
        read = photographs.read(saved(tmp_path, image, name))
        assert np.unique(read).tolist() == [round(255 * level / 65_535)]


def test_what_is_transparent_is_laid_over_white(tmp_path):
    pixels = np.dstack([COLOUR, np.full(COLOUR.shape[:2], 255, np.uint8)])
    pixels[:3, ..., 3] = 0
    right = COLOUR.copy()
    right[:3] = 255
    path = saved(tmp_path, Image.fromarray(pixels), "alpha.png")
    np.testing.assert_array_equal(photographs.read(path), right)
    np.testing.assert_array_equal(photographs.read(pixels), right)


def test_photograph_that_the_camera_turned_is_turned_back(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    path = saved(tmp_path, Image.fromarray(COLOUR), "turned.png", exif=exif)
    np.testing.assert_array_equal(photographs.read(path), np.rot90(COLOUR, -1))


def damaged(folder):
    large = Image.fromarray(np.tile(COLOUR, (30, 30, 1)))
    jpeg = saved(folder, large, "cut.jpg")
    jpeg.write_bytes(jpeg.read_bytes()[:-2000])
    png = saved(folder, large, "cut.png")
    png.write_bytes(png.read_bytes()[:1000])
    (folder / "text.jpg").write_text("no photograph")
    (folder / "empty.png").write_bytes(b"")
    return ["cut.jpg", "cut.png", "text.jpg", "empty.png"]


def test_damaged_or_no_picture_is_refused_with_its_name(tmp_path):
    for name in damaged(tmp_path):
        with pytest.raises(ValueError, match=rf"picture that can be read, got .*{name}.*Pillow"):
            photographs.read(tmp_path / name)


@pytest.mark.filterwarnings("ignore")  # Pillow warns of most of them
def test_tiff_with_any_byte_of_its_directory_changed_is_read_or_refused(tmp_path):
    path = saved(tmp_path, Image.fromarray(COLOUR), "a.tiff", compression="tiff_lzw")
    contents, random = path.read_bytes(), np.random.default_rng(0)
    refused = 0
    for _ in range(1500):
        changed = bytearray(contents)
        for place in random.integers(0, len(changed), 3):
            changed[place] = random.choice([0, 1, 255, random.integers(256)])
        path.write_bytes(changed)
        try:
            photographs.read(path)
        except ValueError:
            refused += 1
    assert refused > 100


def test_what_is_no_file_and_no_array_of_colours_is_refused(tmp_path):
    for path in (tmp_path / "none.png", tmp_path, "x" * 5000, "nul\0.png"):
        with pytest.raises(ValueError, match="must be a file that is there"):
            photographs.read(path)
    for array in (COLOUR.astype(float), COLOUR[0, 0], COLOUR[..., :2]):
        with pytest.raises(ValueError, match=r"must be uint8 of shape"):
            photographs.read(array)
    with pytest.raises(ValueError, match="at least one pixel"):
        photographs.read(COLOUR[:0])
    with pytest.raises(ValueError, match="a file's name or an array, got 'int'"):
        photographs.read(3)


def test_png_keeps_every_pixel_with_a_palette_or_without():
    many = np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8)
    few = many // 128 * 200
    for pixels, mode in ((few, "P"), (many, "RGB")):
        contents = photographs.encoded(pixels)
        np.testing.assert_array_equal(photographs.decoded(contents), pixels)
        assert Image.open(io.BytesIO(contents)).mode == mode


def test_jpeg_of_a_picture_with_few_colours_has_many():
    checked = np.where(np.indices((64, 64)).sum(axis=0)[..., None] // 5 % 2, COLOUR[0, 0], 20)
    checked = checked.astype(np.uint8)
    back = photographs.decoded(photographs.encoded(checked, "JPEG", quality=90))
    assert photographs.colours(checked) == 2
    assert photographs.colours(back) > 20
    with pytest.raises(ValueError, match="`kind` must be one of"):
        photographs.encoded(checked, "GIF")
