"""What of the exchange remains when it begins while gradients are still being computed."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dlguide.errors import require, require_count


def exposed(backward_s: Sequence[float], exchange_s: Sequence[float]) -> float:
    """Predict how long ranks wait for gradients after the backward pass.

    The backward pass goes through layers 1 to L, the last of the net first; b_l is the time of a
    layer and c_l that of its gradient's exchange. A gradient leaves when its layer is done and
    the link is free, one after the other, so the last one has arrived after

        max over l of (b_1 + ... + b_l  +  c_l + ... + c_L)

    and exposed is what of that is more than b_1 + ... + b_L. Leaves out that exchanging takes
    time from the core that computes, which it does unless a network card or another core does it.

    Args:
        backward_s: time of each layer, in the order of the backward pass (s).
        exchange_s: of each layer's gradient, same order (s).

    Returns:
        float: time that is not hidden (s); the sum of `exchange_s` where nothing can be hidden.

    Raises:
        ValueError: when there is no layer, the lists differ in length, or a time is negative.

    Source:
        Awan et al., S-Caffe, PPoPP (2017): reducing layer by layer behind the backward pass.

    >>> exposed([1.0, 1.0], [1.0, 1.0])
    1.0
    """
    require(len(backward_s) > 0, "backward_s", "name a layer at least", list(backward_s))
    equal = len(backward_s) == len(exchange_s)
    require(equal, "exchange_s", f"have {len(backward_s)} layers", len(exchange_s))
    for name, times in (("backward_s", backward_s), ("exchange_s", exchange_s)):
        good = all(0 <= each < math.inf for each in times)
        require(good, name, "hold times of at least 0", list(times))
    now = free = 0.0
    for computing, exchanging in zip(backward_s, exchange_s, strict=True):
        now += computing
        free = max(now, free) + exchanging
    return free - now


def exposed_equal(backward_s: float, exchange_s: float, layers: int) -> float:
    """Predict the same for L equal layers.

    With B for the backward pass and C for all exchanges:

        C / L                  where C <= B: all is hidden but the last layer's
        C - B (1 - 1/L)        where C >= B: the link is busy from the first gradient on

    Args:
        backward_s: B, of all layers (s).
        exchange_s: C, of all layers' gradients (s).
        layers: L, or the number of buckets that are sent (count).

    Returns:
        float: time that is not hidden (s).

    Raises:
        ValueError: when a number is out of range.

    >>> exposed_equal(2.0, 2.0, 2)
    1.0
    """
    for name, value in (("backward_s", backward_s), ("exchange_s", exchange_s)):
        require(0 <= value < math.inf, name, "be at least 0", value)
    last = 1 / require_count(layers, "layers")
    return max(exchange_s * last, exchange_s - backward_s * (1 - last))
