"""Channels last, fused attention and `torch.compile` in PyTorch, each beside the plain way."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import torch
import torch.nn.functional as functional

from dlguide import measure

CASES = {
    "convolution, channels last": "8 images of 56 x 56, 64 channels, 3 x 3",
    "attention, fused": "8 heads, 1024 positions, 64 values each",
    "four operations, torch.compile": "relu(a * b + a) * b, 4 million values",
}


def measure_cases(
    compiled: bool = True, turns: int = 7
) -> dict[str, tuple[measure.Timing, measure.Timing]]:
    """Time each case of `CASES` in turns with the plain way; both must give the same result.

    Args:
        compiled: also the last one, whose compiler takes up to a minute.
    """
    random = torch.Generator().manual_seed(0)
    images, weights = (torch.randn(s, 64, k, k, generator=random) for s, k in ((8, 56), (64, 3)))
    last = [each.contiguous(memory_format=torch.channels_last) for each in (images, weights)]
    q, k, v = (torch.randn(1, 8, 1024, 64, generator=random) for _ in range(3))
    a, b = torch.randn(2, 1 << 22, generator=random)
    fused = torch.compile(_operations) if compiled else _operations
    jobs = (
        (lambda: functional.conv2d(images, weights), lambda: functional.conv2d(*last)),
        (lambda: _attention(q, k, v), lambda: functional.scaled_dot_product_attention(q, k, v)),
        (lambda: _operations(a, b), lambda: fused(a, b)),
    )
    pairs = zip(CASES, jobs, strict=True)
    with torch.inference_mode():
        return {
            name: _in_turns(*pair, turns)
            for name, pair in pairs
            if compiled or "compile" not in name
        }


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    return torch.softmax(scores, -1) @ v


def _operations(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.relu(a * b + a) * b


def _in_turns(
    plain: Callable[[], torch.Tensor], better: Callable[[], torch.Tensor], turns: int
) -> tuple[measure.Timing, measure.Timing]:
    torch.testing.assert_close(plain(), better(), rtol=1e-3, atol=1e-3)
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(turns + 1):
        for job, times in zip((plain, better), seconds, strict=True):
            begin = perf_counter()
            job()
            times.append(perf_counter() - begin)
    first, second = (measure.Timing(tuple(each[1:]), tuple(each[:1])) for each in seconds)
    return first, second
