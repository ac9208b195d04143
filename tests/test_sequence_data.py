"""The series that notebook 13 learns from is whole."""

from dlguide import published


def test_every_year_from_1700_to_2008_has_its_sunspots():
    rows = published.load("sunspots")
    assert [row["year"] for row in rows] == list(range(1700, 2009))
    assert all(row["sunspots"] >= 0 for row in rows)
    # the highest maximum on record, and the year without any spot
    highest = max(rows, key=lambda row: row["sunspots"])
    assert (highest["year"], highest["sunspots"]) == (1957, 190.2)
    assert [row["year"] for row in rows if row["sunspots"] == 0] == [1711, 1712, 1810]
