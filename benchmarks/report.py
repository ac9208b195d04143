"""One form for what a benchmark found: a value with its quartiles beside what is promised.

A benchmark calls `report` or `compare`. Both print a line; `run.py` reads the same as a row.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

import numpy as np

from dlguide.measure import Timing
from dlguide.measure.limits import MOST_SPREAD

ROWS = "DLGUIDE_BENCHMARK_ROWS"  # names the file that `run.py` reads


def report(
    what: str,
    values: Sequence[float],
    least: float | None = None,
    most: float | None = None,
    share: str | float = "",
    seconds: Sequence[Sequence[float]] = (),
) -> None:
    """Print the median of a value with its quartiles, what is promised, and the verdict.

    Args:
        values: one of each turn.
        least: the median that is promised, None for no lower end.
        most: likewise, None for no upper end.
        share: of the limit.
        seconds: repeated times of the same work, which show how much the machine moved; none for
            the values themselves. Where the distance of the quartiles of one is above 20 % of its
            median, there is no verdict.
    """
    low, median, high = np.quantile(values, (0.25, 0.5, 0.75)).tolist()
    spread = max(Timing(tuple(each)).spread for each in seconds or [values])
    promised = " and ".join(
        f"{words} {end:g}" for words, end in (("at least", least), ("at most", most)) if end
    )
    kept = (least is None or median >= least) and (most is None or median <= most)
    verdict = ("kept" if kept else "missed") if promised else ""
    if spread > MOST_SPREAD:
        verdict = "none, the machine moved"
    share = share if isinstance(share, str) else f"{share:.2g}"
    row = {"what": what, "value": median, "low": low, "high": high, "spread": spread}
    row |= {"share": share, "promised": promised, "verdict": verdict}
    print(
        f"{what}: {median:.3g} ({low:.3g} to {high:.3g}), spread {spread:.0%}",
        *[f"promised {promised}: {verdict}"] * bool(promised),
        *[f"share of the limit {share}"] * bool(share),
        sep="; ", flush=True,
    )  # fmt: skip
    if ROWS in os.environ:
        with open(os.environ[ROWS], "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def compare(
    what: str,
    ours_s: Sequence[float],
    theirs_s: Sequence[float],
    least: float | None = None,
    most: float | None = None,
    share: str | float = "",
) -> None:
    """Report how many times as fast ours is, turn by turn, from the times (s) of each turn."""
    times = np.divide(theirs_s, ours_s).tolist()
    report(what, times, least, most, share, [times, theirs_s])
