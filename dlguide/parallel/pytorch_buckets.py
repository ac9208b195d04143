"""Buckets: which gradients DistributedDataParallel sends together, predicted and counted."""

from __future__ import annotations

from collections.abc import Sequence

from dlguide.errors import require_count

# What PyTorch 2.13 takes when nothing is said: a first, smaller bucket, so that sending can begin
# early, and then all others.
FIRST_NBYTES, OTHER_NBYTES = 2**20, 25 * 2**20


def filled(nbytes: Sequence[int], cap_nbytes: int | None = None) -> list[list[int]]:
    """Tell which gradients share a bucket, by DistributedDataParallel's rule.

    Gradients are taken in the order in which they become ready. A bucket takes them one after
    another *until it holds at least the cap*, the last one included; then the next bucket begins.
    So a bucket may be larger than its cap, where Horovod's messages stay within their threshold.

    Holds from the second step on: before the first one the order is only guessed, as the reverse
    of the parameters' order. Leaves out that gradients of different dtypes never share a bucket.

    Source:
        Li et al., PVLDB 13 (2020), 3005-3018, section 3.2.3; PyTorch 2.13,
        torch/csrc/distributed/c10d/reducer.cpp, compute_bucket_assignment_by_size.

    >>> filled([40, 40, 40, 200, 8], 100)
    [[0, 1, 2], [3], [4]]
    """
    sizes = [require_count(size, "nbytes", least=0) for size in nbytes]
    if cap_nbytes is not None:
        require_count(cap_nbytes, "cap_nbytes")
    buckets: list[list[int]] = []
    held, cap = 0, 0  # the first gradient opens a bucket
    for place, size in enumerate(sizes):
        if held >= cap:
            first = FIRST_NBYTES if not buckets else OTHER_NBYTES
            held, cap = 0, first if cap_nbytes is None else cap_nbytes
            buckets.append([])
        buckets[-1].append(place)
        held += size
    return buckets


def sizes(nbytes: Sequence[int], cap_nbytes: int | None = None) -> list[int]:
    """Give the bytes of each bucket, as `filled` divides them.

    >>> sizes([40, 40, 40, 200, 8], 100)
    [120, 200, 8]
    """
    return [sum(nbytes[place] for place in bucket) for bucket in filled(nbytes, cap_nbytes)]
