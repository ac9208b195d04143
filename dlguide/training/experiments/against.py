"""Our numbers beside those of the sources: what agrees, what does not, in computed words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dlguide import published
from dlguide.errors import require, require_known
from dlguide.training.experiments.differences import Difference, compare
from dlguide.training.experiments.record import Result
from dlguide.training.experiments.tables import Row, groups, table

# The thesis calls these two "on par": what lies no further apart it does not tell apart.
_ON_PAR = (
    {"experiment": 6, "workers": 32, "framework": "Horovod"},
    {"experiment": 8, "workers": 32},
)
_CAUTION = (
    "Published accuracies are those of one run each, at the best epoch of the test set; ours are "
    "means over seeds after the last epoch."
)


@dataclass(frozen=True)
class Pair:
    """One recipe: our row, the published one, and how each differs from its baseline.

    name; ours (a row of `table`); theirs (a row of `published.load("accuracy")`); ours_apart
    (None for the baseline); theirs_apart (fraction, None for the baseline); verdict ("baseline",
    "agree", "differ", "only ours", "only theirs", "cannot be told").
    """

    name: str
    ours: Row
    theirs: Mapping[str, Any]
    ours_apart: Difference | None
    theirs_apart: float | None
    verdict: str

    def __str__(self) -> str:
        told = f"{self.theirs['study']}, experiment {self.theirs['experiment']}"
        top1 = self.theirs["top1_percent"]
        if self.ours_apart is None:
            return f"{self.name}: ours {_percent(self.ours.accuracy)}, {told} {top1:g} %."
        words = {
            "agree": "They agree.",
            "differ": "They contradict each other.",
            "only ours": "The published difference is too small for one run to tell.",
            "only theirs": "What they saw is not to be seen here.",
            "cannot be told": "Whether they agree cannot be told.",
        }[self.verdict]
        published_words = f"{100 * abs(self.theirs_apart):.2f} points " + (
            "above" if self.theirs_apart > 0 else "below"
        )
        return f"{self.ours_apart} {told}: {published_words} its baseline. {words}"


@dataclass(frozen=True)
class Against:
    """Our recipes beside published ones: pairs, and the published difference that is none."""

    pairs: tuple[Pair, ...]
    noise: float

    def __str__(self) -> str:
        lines = [str(pair) for pair in self.pairs]
        agree = sum(pair.verdict == "agree" for pair in self.pairs)
        asked = sum(pair.verdict not in ("baseline", "cannot be told") for pair in self.pairs)
        untold = len([pair for pair in self.pairs if pair.verdict == "cannot be told"])
        words = f" Of {untold} it cannot be told." if untold else ""
        lines.append(f"{agree} of {asked} recipes agree with what was published.{words} {_CAUTION}")
        return "\n".join(lines)


def against_published(
    results: Sequence[Result],
    pairs: Mapping[str, Mapping[str, Any]],
    baseline: str = "baseline",
    published_baseline: Mapping[str, Mapping[str, Any]] | None = None,
) -> Against:
    """Put recipes beside published ones, and say where the two tell the same story.

    Accuracies on another net and other data cannot be equal; what can agree is whether a recipe
    lies above or below its baseline. Ours does so where the difference over seeds is clear
    (`Difference.clear`), or where it diverges with more seeds; a published one, a single run,
    beyond the difference that its authors call none. From one seed of ours nothing can be told.

        against_published(results, {"baseline": {"experiment": 5, "workers": 1},
                                    "naive": {"experiment": 4, "workers": 32}})

    Args:
        results: what `run` returned.
        pairs: our name -> columns and values that single out one row of the published table
            "accuracy"; a text need only begin so.
        baseline: the name of ours that the others are compared with.
        published_baseline: our name -> the published row that its published one is compared
            with, where it is not that of `baseline`: the thesis' experiment 4 has another
            schedule than its later ones, and so a baseline of its own.

    Returns:
        Against: prints as sentences.

    Raises:
        ValueError: when a name is unknown or a row is not singled out.
    """
    named = groups(results)
    require_known(baseline, pairs, "baseline")
    for name in pairs:
        require_known(name, named, "pairs")
    rows, noise = table(results), on_par()
    own = {name: one_row(columns) for name, columns in (published_baseline or {}).items()}
    theirs = {name: one_row(columns) for name, columns in pairs.items()}
    found = []
    for name, row in theirs.items():
        if name == baseline:
            found.append(Pair(name, rows[name], row, None, None, "baseline"))
            continue
        difference = compare(named[name], named[baseline])
        apart = _apart(row, own.get(name, theirs[baseline]))
        verdict = _verdict(difference, apart, noise)
        found.append(Pair(name, rows[name], row, difference, apart, verdict))
    return Against(tuple(found), noise)


def one_row(columns: Mapping[str, Any], name: str = "accuracy") -> dict[str, Any]:
    """Single out one row of a published table."""
    rows = published.load(name)
    for column in columns:
        require_known(column, rows[0], "columns")

    def fits(value: Any, wanted: Any) -> bool:
        both = isinstance(value, str) and isinstance(wanted, str)
        return value.startswith(wanted) if both else str(value) == str(wanted)

    found = [row for row in rows if all(fits(row[c], wanted) for c, wanted in columns.items())]
    then = "Name more columns." if found else "Look at `published.load`."
    must = f"single out one row of {name}, {len(found)} fit"
    require(len(found) == 1, "columns", must, dict(columns), then)
    return found[0]


def on_par() -> float:
    """Give the difference in top-1 accuracy that the thesis does not count as one.

    Source:
        The thesis, section 5.8: results "on par" with those of experiment 6.
    """
    one, other = (one_row(columns) for columns in _ON_PAR)
    return abs(_apart(one, other))


def _apart(row: Mapping[str, Any], base: Mapping[str, Any]) -> float:
    return (row["top1_percent"] - base["top1_percent"]) / 100


def _verdict(ours: Difference, theirs: float, noise: float) -> str:
    seen = abs(theirs) > noise + 1e-9  # the two that are on par are so
    lost = ours.diverged[0] > ours.diverged[1]
    if ours.standard_error is None and not lost:
        return "cannot be told"
    clear = ours.clear or lost
    if not clear and not seen:
        return "agree"
    if not clear or not seen:
        return "only ours" if clear else "only theirs"
    below = lost or ours.mean < 0
    return "agree" if below == (theirs < 0) else "differ"


def _percent(fraction: float | None) -> str:
    return "diverged" if fraction is None else f"{100 * fraction:.2f} %"
