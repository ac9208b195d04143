"""The series and the text that notebook 13 learns from are whole."""

from pathlib import Path

from dlguide import published

SONNETS = Path(__file__).parents[1] / "data/texts/sonnets.txt"


def test_every_year_from_1700_to_2008_has_its_sunspots():
    rows = published.load("sunspots")
    assert [row["year"] for row in rows] == list(range(1700, 2009))
    assert all(row["sunspots"] >= 0 for row in rows)
    # the highest maximum on record, and the year without any spot
    highest = max(rows, key=lambda row: row["sunspots"])
    assert (highest["year"], highest["sunspots"]) == (1957, 190.2)
    assert [row["year"] for row in rows if row["sunspots"] == 0] == [1711, 1712, 1810]


def test_every_sonnet_has_fourteen_lines():
    sonnets = SONNETS.read_text(encoding="ascii").strip().split("\n\n")
    assert len(sonnets) == 13
    assert {len(sonnet.splitlines()) for sonnet in sonnets} == {14}
    # the couplets end a sonnet
    assert sonnets[4].endswith("So long lives this and this gives life to thee.")
