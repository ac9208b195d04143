"""How the pair grows while it is trained, and the rate that belongs to each step."""

from __future__ import annotations

from dlguide.errors import require_count, require_positive


def stages(epochs: int, resolutions: int) -> tuple[int, ...]:
    """Tell for each epoch how many resolutions are trained.

    The finest one, with all the others, has half of the epochs, as its steps are those that take
    time; the coarser ones share the other half. With few epochs the coarse ones come short first.

    Source:
        Karras et al. 2017 (arXiv:1710.10196), section 2: growing, for pictures; Aigner and
        Koerner 2018 (arXiv:1810.01325), FutureGAN: for video.

    >>> stages(8, 3), stages(2, 3)
    ((1, 1, 2, 2, 3, 3, 3, 3), (2, 3))
    """
    require_count(epochs, "epochs")
    before = epochs // 2 if require_count(resolutions, "resolutions") > 1 else 0
    coarse = sorted(resolutions - 1 - number % (resolutions - 1) for number in range(before))
    return (*coarse, *(resolutions,) * (epochs - before))


def rate_at(step: int, steps: int, rate: float) -> float:
    """Give the rate of a step: constant for the first half, then down to a hundredth.

    >>> [rate_at(step, 10, 1.0) for step in (0, 5, 9)]
    [1.0, 1.0, 0.208]
    """
    left = 1 - require_count(step, "step", least=0) / require_count(steps, "steps")
    return require_positive(rate, "rate") * round(min(1.0, 0.01 + 0.99 * 2 * max(left, 0.0)), 9)
