"""A pass over a data set gives all records and nothing else, and checks what is around them."""

from __future__ import annotations

import random

import pytest

from dlguide.data import formats
from dlguide.data.formats.records import FRAMINGS

NUMBER = random.Random(9)
# records smaller and larger than what is read at once (1 MiB), and empty ones
SIZES = [3000, 0, 700_000, 700_000, 2_500_000, 12, *[20_000] * 60]


def written(folder, kind, **options):
    path = folder / kind
    with formats.create(path, kind, **options) as writer:
        for number, nbytes in enumerate(SIZES):
            writer.append(formats.Sample(NUMBER.randbytes(nbytes), (number % 3,), f"k{number}"))
    return path


@pytest.mark.parametrize("kind", formats.KINDS)
def test_a_pass_gives_every_record_once_and_in_order(kind, tmp_path):
    with formats.open(written(tmp_path, kind)) as dataset:
        records = list(dataset.records())
        assert records == [dataset.stored(number) for number in range(len(SIZES))]


@pytest.mark.parametrize("kind", FRAMINGS)
@pytest.mark.parametrize("moved", [-(2**40), -1, 1, 2**40])
def test_an_index_that_is_not_where_the_records_are_is_damage(kind, moved, tmp_path):
    with formats.open(written(tmp_path, kind)) as dataset:
        dataset.index = dataset.index.copy()
        dataset.index["offset"][1] = (int(dataset.index["offset"][1]) + moved) % 2**64
        with pytest.raises(formats.DamageError, match=r"record [012] "):
            list(dataset)
