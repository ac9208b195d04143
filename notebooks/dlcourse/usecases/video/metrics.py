"""How near a predicted frame is to the true one: by its pixels (PSNR), by its structure (SSIM)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from dlguide.errors import require, require_positive

# Wang et al.: a Gaussian window of 11 x 11 pixels, and two constants that keep 0 / 0 away.
WINDOW, SIGMA = 11, 1.5
K1, K2 = 0.01, 0.03


def psnr(truth: ArrayLike, predicted: ArrayLike, top: float = 255.0) -> np.ndarray:
    """Compare frames pixel by pixel: the peak signal-to-noise ratio.

        PSNR = 10 log10(top^2 / mean of (truth - predicted)^2)

    20 dB are an error of a tenth of the range of brightness, 40 dB of a hundredth. One frame has
    one value; to judge many, take the mean of their decibels.
    """
    a, b = _frames(truth, predicted)
    error = np.mean((a - b) ** 2, axis=(-3, -2, -1))
    with np.errstate(divide="ignore"):
        return 10 * np.log10(require_positive(top, "top") ** 2 / error)


def ssim(truth: ArrayLike, predicted: ArrayLike, top: float = 255.0) -> np.ndarray:
    """Compare frames window by window: the structural similarity, at most 1.

    In each window of 11 x 11 pixels, weighted by a Gaussian, with means m, variances v and
    covariance c of the two frames,

        SSIM = (2 m_a m_b + C1) (2 c + C2) / ((m_a^2 + m_b^2 + C1) (v_a + v_b + C2))

    with C1 = (0.01 top)^2 and C2 = (0.03 top)^2; then the mean over windows that lie wholly in
    the frame, and over channels. A blurred edge costs little in PSNR and much here, a slightly
    darker picture the other way round.

    Source:
        Wang, Bovik, Sheikh and Simoncelli, IEEE Transactions on Image Processing 13 (2004),
        600-612, equation 13 and section III-C.
    """
    a, b = _frames(truth, predicted)
    large = min(a.shape[-3:-1]) >= WINDOW
    require(large, "truth", f"have frames of at least {WINDOW} x {WINDOW} pixels", a.shape)
    c1, c2 = ((k * require_positive(top, "top")) ** 2 for k in (K1, K2))
    mean_a, mean_b = _local(a), _local(b)
    variances = _local(a * a) - mean_a**2 + _local(b * b) - mean_b**2
    covariance = _local(a * b) - mean_a * mean_b
    bright = (2 * mean_a * mean_b + c1) / (mean_a**2 + mean_b**2 + c1)
    return np.mean(bright * (2 * covariance + c2) / (variances + c2), axis=(-3, -2, -1))


def _frames(truth: ArrayLike, predicted: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    a, b = np.asarray(truth, np.float64), np.asarray(predicted, np.float64)
    must = "have the shape (..., rows, columns, channels)"
    require(a.ndim >= 3 and a.size > 0, "truth", must, a.shape)
    require(a.shape == b.shape, "predicted", f"have the shape {a.shape} of `truth`", b.shape)
    return a, b


def _local(frames: np.ndarray) -> np.ndarray:
    """Take the weighted mean of every window that lies wholly in the frame."""
    down, across = (_means(size) for size in frames.shape[-3:-1])
    # one axis after the other: the Gaussian of two axes is a product
    return np.moveaxis(down @ np.moveaxis(across @ frames, -3, -2), -2, -3)


def _means(size: int) -> np.ndarray:
    """Make the matrix that turns `size` pixels into the means of their windows."""
    weights = np.exp(-0.5 * ((np.arange(WINDOW) - WINDOW // 2) / SIGMA) ** 2)
    windows = np.zeros((size - WINDOW + 1, size))
    for row, window in enumerate(windows):
        window[row : row + WINDOW] = weights / weights.sum()
    return windows
