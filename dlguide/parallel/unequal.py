"""Workers that are not equally fast: less work for the slow ones, or no waiting for the last.

    shares(150, speeds=[50, 50, 25])    # [60, 60, 30]: all finish together
    cut_off(step_s)                     # how many of the slowest a step should not wait for

Both keep training exact in the sense that a server weighs each gradient by its samples: with
shares the update is that of the whole batch, with a cut-off that of the samples that came.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dlguide.errors import require, require_count


def shares(samples: int, speeds: Sequence[float]) -> list[int]:
    """Divide a global batch in proportion to the workers' speeds.

    Each share is the exact one rounded down or up; the shares with the largest remainders are
    rounded up, so that their sum is right.

    Args:
        samples: size of the global batch (count).
        speeds: samples that each worker alone works off in a second; above 0.

    Returns:
        list: samples of each worker (count).

    Raises:
        ValueError: when a speed is not above 0, or there are fewer samples than workers.

    Source:
        The survey, 1.5.4: MXNet's static load balancing.

    >>> shares(150, [50, 50, 25])
    [60, 60, 30]
    """
    speed = np.asarray(speeds, float)
    require_count(samples, "samples", least=max(speed.size, 1))
    right = speed.ndim == 1 and speed.size > 0 and np.all(np.isfinite(speed) & (speed > 0))
    require(bool(right), "speeds", "be a list of numbers above 0", speeds)
    exact = samples * speed / speed.sum()
    parts = np.floor(exact).astype(int)
    largest_first = np.argsort(-(exact - parts), kind="stable")
    parts[largest_first[: samples - parts.sum()]] += 1
    return parts.tolist()


def cut_off(step_s: np.ndarray) -> int:
    """Choose how many of the slowest workers a synchronous step should go on without.

    Without the last k of p, a step lasts as long as the (p - k)-th fastest worker and uses p - k
    gradients. Chosen is the k that uses the most gradients in a second over all steps.

    Source:
        Teng and Wood, NeurIPS (2018), who predict the times by a model; the thesis, 3.2.3.

    >>> cut_off(np.array([[0.1, 0.1, 0.1, 0.9]]))
    1
    """
    times = np.asarray(step_s, float)
    right = times.ndim == 2 and times.size > 0 and np.all(np.isfinite(times) & (times > 0))
    require(bool(right), "step_s", "be a table of times above 0, a row for each step", step_s)
    waiting_for = np.arange(1, times.shape[1] + 1)
    per_s = waiting_for / np.sort(times, axis=1).mean(axis=0)
    # of equally good ones the one that uses most gradients
    best = np.flatnonzero(per_s == per_s.max())[-1]
    return int(times.shape[1] - waiting_for[best])
