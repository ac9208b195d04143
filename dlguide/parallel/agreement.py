"""All ranks together or none: the same arguments everywhere, and the same error everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dlguide.errors import require

if TYPE_CHECKING:
    from mpi4py.MPI import Comm


def alike(comm: Comm, **values: Any) -> None:
    """Check that arguments are the same on all ranks; collective."""
    everyone = comm.allgather({name: repr(value) for name, value in values.items()})
    for name in values:
        kinds = _by_text([one[name] for one in everyone])
        if len(kinds) > 1:
            got = " and ".join(f"{text} on {ranks}" for text, ranks in kinds.items())
            raise ValueError(f"`{name}` must be equal on all ranks, got {got}.")


@contextmanager
def together(comm: Comm) -> Iterator[None]:
    """Let all ranks fail when one does, with the same text; collective.

    Put what may refuse its arguments into a `with` block. Nothing in the block may communicate.
    """
    error = None
    try:
        yield
    except Exception as raised:  # whatever it is: the others would wait for this rank
        error = raised
    told = comm.allgather("" if error is None else _said(error))
    kinds = {text: ranks for text, ranks in _by_text(told).items() if text}
    if kinds:
        said = " ".join(f"{ranks.capitalize()}: {text}" for text, ranks in kinds.items())
        raise ValueError(said) from error


def share(count: int, ranks: int, rank: int, name: str) -> slice:
    """Cut a number of things into one part for each rank, sizes differing by at most one.

    Args:
        count: number of things (count).
        ranks: number of parts (count).
        rank: whose part.
        name: what is cut, for the message.

    Returns:
        slice: this rank's things.

    Raises:
        ValueError: when there are fewer things than ranks.

    >>> [share(5, 2, rank, "units") for rank in range(2)]
    [slice(0, 2, None), slice(2, 5, None)]
    """
    require(count >= ranks, name, f"be at least the {ranks} ranks", count, "Use fewer ranks.")
    return slice(rank * count // ranks, (rank + 1) * count // ranks)


def _said(error: Exception) -> str:
    text = str(error)
    return text if text and isinstance(error, ValueError) else f"{type(error).__name__}: {text}"


def _by_text(texts: list[str]) -> dict[str, str]:
    kinds: dict[str, list[int]] = {}
    for rank, text in enumerate(texts):
        kinds.setdefault(text, []).append(rank)
    return {
        text: f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
        for text, ranks in kinds.items()
    }
