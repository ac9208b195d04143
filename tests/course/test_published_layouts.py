"""The published trainings of lesson 93: their nets, ranks and MFU agree with themselves.

Tests dlcourse.published_layouts.
"""

import pytest

from dlcourse import published_layouts

ROWS = published_layouts.load()
SIZES = {  # parameters in 1e9, as the papers print them
    ("Megatron 2019", 8): 8.3, ("Megatron 2021", 32): 1.7, ("Megatron 2021", 64): 3.6,
    ("Megatron 2021", 128): 7.5, ("Megatron 2021", 256): 18.4, ("Megatron 2021", 512): 39.1,
    ("Megatron 2021", 1024): 76.1, ("Megatron 2021", 1536): 145.6, ("Megatron 2021", 1920): 310.1,
    ("Megatron 2021", 2520): 529.6, ("Megatron 2021", 3072): 1008.0,
    ("Llama 3 405B", 8192): 405, ("Llama 3 405B", 16384): 405,
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['study'][:13]} {row['gpus']}")
def test_a_layout_uses_all_gpus_and_its_net_has_the_printed_size(row):
    assert row["data"] * row["tensor"] * row["context"] * row["pipeline"] == row["gpus"]
    assert row["sequences"] % row["data"] == 0
    # without biases and the table of positions; DeepSeek-V3's attention has another form
    size = SIZES.get((row["study"].split(" (")[0], row["gpus"]), 671)
    rel = 0.06 if size == 671 else 0.035
    assert published_layouts.shape(row).parameters / 1e9 == pytest.approx(size, rel=rel)


def test_microbatches_divide_the_batch_of_a_copy_and_give_the_bubble():
    for row in ROWS:
        if row["microbatch"] is None:
            assert not row["study"].startswith("Megatron 2021")
            continue
        parts, left = divmod(row["sequences"], row["data"] * row["microbatch"])
        assert left == 0
        theirs = published_layouts.theirs(row, published_layouts.plan(row, 0.5))
        waits = theirs.compute_s * (row["pipeline"] - 1) / parts / row["pieces"]
        assert theirs.bubble_s == pytest.approx(waits)


def test_mfu_is_that_of_the_papers():
    mfu = published_layouts.published_mfu
    found = {(row["study"].split(" (")[0], row["gpus"], row["length"]): mfu(row) for row in ROWS}
    assert found["Llama 3 405B", 8192, 8192] == pytest.approx(0.43, abs=0.006)
    assert found["Llama 3 405B", 16_384, 8192] == pytest.approx(0.41, abs=0.006)
    assert found["Llama 3 405B", 16_384, 131_072] == pytest.approx(0.38, abs=0.006)
    # of the peak of 312, 52 % with the recomputed flops
    assert found["Megatron 2021", 3072, 2048] == pytest.approx(0.75 * 163 / 312)
    assert found["Megatron 2019", 8, 1024] is None


def test_a_fitted_share_gives_the_published_mfu():
    row = next(each for each in ROWS if each["gpus"] == 64)
    share = published_layouts.fitted_share(row)
    theirs = published_layouts.theirs(row, published_layouts.plan(row, share))
    wanted = published_layouts.published_mfu(row)
    assert published_layouts.predicted_mfu(row, theirs) == pytest.approx(wanted, rel=1e-3)
    assert 0.3 < share < 0.6
    assert all(one.context == 1 for one in published_layouts.plan(row, share))
