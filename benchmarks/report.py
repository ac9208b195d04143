"""One form for what a benchmark found: a value with its quartiles beside what is promised.

A benchmark calls `report` or `compare`. Both print a line; `run.py` reads the same as a row.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

import numpy as np

from dlguide.measure import Timing

ROWS = "DLGUIDE_BENCHMARK_ROWS"  # names the file that `run.py` reads
KEPT, MISSED, UNCLEAR = "kept", "missed", "unclear"


def verdict(low: float, high: float, least: float | None = None, most: float | None = None) -> str:
    """Judge a promise by the quartiles: it is kept or missed where both are on the same side."""
    if least is None and most is None:
        return ""
    least = -np.inf if least is None else least
    most = np.inf if most is None else most
    if least <= low and high <= most:
        return KEPT
    return MISSED if high < least or low > most else UNCLEAR


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
            the values themselves.
    """
    low, median, high = np.quantile(values, (0.25, 0.5, 0.75)).tolist()
    spread = max(Timing(tuple(each)).spread for each in seconds or [values])
    promised = " and ".join(
        f"{words} {end:g}"
        for words, end in (("at least", least), ("at most", most))
        if end is not None
    )
    judged = verdict(low, high, least, most)
    share = share if isinstance(share, str) else f"{share:.2g}"
    row = {"what": what, "value": median, "low": low, "high": high, "spread": spread}
    row |= {"share": share, "promised": promised, "verdict": judged}
    print(
        f"{what}: {median:.3g} ({low:.3g} to {high:.3g}), spread {spread:.0%}",
        *[f"promised {promised}: {judged}"] * bool(promised),
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
