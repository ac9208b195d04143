"""The fast tour: every lesson with less work, to see that all of it runs.

What a lesson may leave out stands in its own cells, as metadata: `{"fast": [["epochs=12",
"epochs=1"]]}` means that the fast tour writes the second text in place of the first. A result that
needs the whole work is not judged then: its `assert` is among the texts that go.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from typing import Any

from dlguide.checks import require


def shorten(cells: Iterable[MutableMapping[str, Any]]) -> int:
    """Write the shorter texts into cells, in place.

    Args:
        cells: of a notebook; a cell's source is one text or a list of lines.

    Returns:
        int: texts replaced (count).

    Raises:
        ValueError: when `fast` is no list of pairs, or a text is not once in its cell.
    """
    count = 0
    for number, cell in enumerate(cells):
        pairs = cell.get("metadata", {}).get("fast", [])
        require(_are_pairs(pairs), "fast", f"be pairs of texts in cell {number}", pairs)
        source = "".join(cell["source"])
        for whole, short in pairs:
            once = f"be once in cell {number}, and not the same as what replaces it"
            require(source.count(whole) == 1 and whole != short, "fast", once, whole)
            source = source.replace(whole, short)
            count += 1
        if pairs:
            cell["source"] = source
    return count


def _are_pairs(pairs: Any) -> bool:
    return isinstance(pairs, list) and all(
        isinstance(pair, list) and len(pair) == 2 and all(isinstance(one, str) for one in pair)
        for pair in pairs
    )
