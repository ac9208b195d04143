"""Which trainings an experiment is made of: a baseline, one thing changed at a time, seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from dlguide.errors import require, require_known
from dlguide.training.experiments.setting import Setting

BASELINE = "baseline"


def one_factor(
    baseline: Setting,
    factors: Mapping[str | tuple[str, ...], Iterable[Any]],
    seeds: Iterable[int] = (0,),
) -> list[Setting]:
    """Change one thing at a time, everything else as in the baseline, over several seeds.

    What is already there is not listed again: a factor's value that is the baseline's own, or
    one that makes no difference, such as a rule for the rate where the batch is the base batch.

        one_factor(baseline, {"workers": (8, 32), ("rule", "warmup"): [("linear", "gradual")]})

    Args:
        baseline: what all others are compared with.
        factors: for each field of a Setting its values; several fields that change together are
            a tuple, and so are their values.
        seeds: each training is made with every one of them.

    Returns:
        list: Settings with names such as "baseline", "workers 8", "rule linear, warmup gradual";
            for each name all seeds.

    Raises:
        ValueError: when a field is unknown, or a training is impossible; before any is made.
    """
    named = {baseline.name or BASELINE: baseline}
    for factor, values in factors.items():
        names = (factor,) if isinstance(factor, str) else tuple(factor)
        for name in names:
            require_known(name, changeable(), "factors")
        for value in values:
            each = (value,) if isinstance(factor, str) else tuple(value)
            must = f"have {len(names)} values for {', '.join(names)}"
            require(len(each) == len(names), "factors", must, value)
            label = ", ".join(f"{n} {_word(v)}" for n, v in zip(names, each, strict=True))
            named[label] = replace(baseline, **dict(zip(names, each, strict=True)))
    return each_seed(_without_repetition(named), seeds)


def each_seed(named: Mapping[str, Setting], seeds: Iterable[int] = (0,)) -> list[Setting]:
    """Name settings, and ask for each of them with several seeds.

    Two names of one training are both kept; `run` trains it once.

    Args:
        named: name -> Setting.
        seeds: of weights, order of samples and dropout.

    Returns:
        list: name by name, for each all seeds.

    Raises:
        ValueError: when there are no settings or no seeds, or a seed comes twice.
    """
    seeds = list(seeds)
    require(bool(named), "named", "hold at least one Setting", dict(named))
    require(bool(seeds), "seeds", "hold at least one seed", seeds)
    then = "The same training twice says nothing about chance."
    require(len(set(seeds)) == len(seeds), "seeds", "differ", seeds, then)
    return [replace(one, name=name, seed=seed) for name, one in named.items() for seed in seeds]


def changeable() -> tuple[str, ...]:
    """List the fields that can be a factor."""
    return tuple(field.name for field in fields(Setting) if field.name not in ("name", "seed"))


def of(results: Sequence[Any], name: str) -> list[Any]:
    """Take the results of one name, all its seeds.

    Args:
        results: what `run` returned.
        name: as in tables.

    Returns:
        list: Results.

    Raises:
        ValueError: when there are none of that name.
    """
    require_known(name, dict.fromkeys(one.setting.name for one in results), "name")
    return [one for one in results if one.setting.name == name]


def _without_repetition(named: Mapping[str, Setting]) -> dict[str, Setting]:
    kept: dict[str, Setting] = {}
    for setting in {one.key(): name for name, one in reversed(list(named.items()))}.values():
        kept[setting] = named[setting]
    return {name: named[name] for name in named if name in kept}


def _word(value: Any) -> str:
    if isinstance(value, tuple | list):
        return " ".join(map(_word, value))
    return f"{value:g}" if isinstance(value, float) else "none" if value is None else str(value)
