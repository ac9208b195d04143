"""Blocks hold all records and nothing else; what stands around records is checked many at once."""

from __future__ import annotations

import random

import numpy as np
import pytest

from dlguide.data import formats
from dlguide.data.formats.dataset import RecordBlock
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


@pytest.mark.parametrize("kind", FRAMINGS)
def test_frames_of_many_records_are_those_of_each(kind):
    framing = FRAMINGS[kind]
    lengths = [0, 1, 255, 256, 65_535, 1 << 24, 2**40 + 77, 2**64 - 1]
    lengths += [NUMBER.getrandbits(NUMBER.randrange(1, 64)) for _ in range(500)]
    crcs = [0, 2**32 - 1, *[NUMBER.getrandbits(32) for _ in lengths[2:]]]
    before, after = framing.frames(np.array(lengths, np.uint64), np.array(crcs, np.uint32))
    assert before.shape == (len(lengths), framing.before_nbytes)
    assert after.shape == (len(lengths), framing.after_nbytes)
    for number, (nbytes, crc) in enumerate(zip(lengths, crcs, strict=True)):
        expected = framing.frame(nbytes, crc)
        assert (before[number].tobytes(), after[number].tobytes()) == expected


@pytest.mark.parametrize("kind", FRAMINGS)
def test_frames_of_no_record_are_empty(kind):
    before, after = FRAMINGS[kind].frames(np.zeros(0, np.uint64), np.zeros(0, np.uint32))
    assert before.shape[0] == after.shape[0] == 0


@pytest.mark.parametrize("kind", formats.KINDS)
def test_blocks_hold_every_record_once_and_in_order(kind, tmp_path):
    with formats.open(written(tmp_path, kind)) as dataset:
        number = 0
        for block in dataset.blocks():
            assert block.first == number
            for start, end in zip(block.starts, block.ends, strict=True):
                assert block.contents[start:end] == dataset.stored(number)
                number += 1
        assert number == len(SIZES)


def test_blocks_of_several_files_open_each_once(tmp_path):
    with formats.open(written(tmp_path, "tfrecord", shard_samples=10)) as dataset:
        before = dataset.opens
        records = sum(len(block.starts) for block in dataset.blocks())
        assert records == len(SIZES)
        assert dataset.opens - before == len(dataset.data) == 7


@pytest.mark.parametrize("kind", FRAMINGS)
@pytest.mark.parametrize("moved", [-(2**40), -1, 1, 2**40])
def test_a_block_whose_records_lie_elsewhere_is_damage(kind, moved, tmp_path):
    with formats.open(written(tmp_path, kind)) as dataset:
        block = next(dataset.blocks())
        dataset.check_between(block)
        starts, ends = [*block.starts], [*block.ends]
        starts[1] += moved
        ends[1] += moved
        with pytest.raises(formats.DamageError, match=r"record 1 .*its length or checksum"):
            dataset.check_between(RecordBlock(block.contents, 0, starts, ends))
