"""Batches: what the last one of an epoch holds, and which size serves both speed and quality."""

from __future__ import annotations

from dlguide.checks import require_count


def last_batch(samples: int, batch: int, workers: int) -> int:
    """Count the images of one worker in the last step of an epoch.

    Each worker has ceil(samples / workers) of them, as PyTorch's sampler deals them out, and
    takes `batch` of them at a time: the last step has what is left.

    Args:
        samples: training images (count).
        batch: images per worker and step (count).
        workers: that train together (count).

    Returns:
        int: between 1 and `batch` (count).

    Raises:
        ValueError: when a count is not at least 1.

    Source:
        The thesis trains on 1 281 167 images with batches of 128 and meets trouble it could not
        explain with 24 workers only, whose last step has 6 images each (sections 5.4 to 5.9 and
        6.2; that the one has to do with the other is a hypothesis).

    >>> [last_batch(1_281_167, 128, workers) for workers in (1, 8, 16, 24, 32)]
    [15, 18, 73, 6, 101]
    """
    own = -(-require_count(samples, "samples") // require_count(workers, "workers"))
    return (own - 1) % require_count(batch, "batch") + 1
