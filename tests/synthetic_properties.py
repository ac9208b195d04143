"""What all synthetic samples guarantee, for the tests of the library and of the course."""

import pickle


def plain(sample):
    """All that a sample holds, to be compared."""
    values = {name: getattr(sample, name) for name in sample.__dataclass_fields__}
    return {**values, "pixels": (sample.pixels.shape, sample.pixels.tobytes())}


def assert_seed_and_index_alone(make):
    """A sample depends on seed and index alone, also in a slice and in another process."""
    wanted = [plain(sample) for sample in make(20)]
    many = pickle.loads(pickle.dumps(make(1_000_000_000)))
    for index in (19, 3, 11, 3, 0):
        assert plain(many[index]) == wanted[index]
    assert plain(make(20, seed=6)[3]) != wanted[3]
    assert wanted[3]["pixels"] != wanted[10]["pixels"]
    parts = [make(11)[rank::3] for rank in range(3)]
    assert [len(part) for part in parts] == [4, 4, 3]
    assert [sample.index for sample in parts[1]] == [1, 4, 7, 10]
    assert plain(parts[2][1]) == wanted[5]
