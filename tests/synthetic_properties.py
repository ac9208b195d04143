"""What all synthetic samples guarantee, for the tests of the library and of the course."""

import json
import pickle
import sys
from pathlib import Path

from dlguide import commands


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


# In a process by itself: what other threads of this one allocate is not the samples'.
PEAK = """
import importlib, json, sys, tracemalloc
sys.path.insert(0, sys.argv[2])
MAKERS = importlib.import_module(sys.argv[1]).MAKERS
def peak(samples):
    tracemalloc.start()
    for sample in samples:
        assert sample.pixels.nbytes
    found = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return found
for make in MAKERS.values():
    peak(make(10**9)[:3])
print(json.dumps({name: [peak(make(10**9)[:n]) for n in (6, 60)] for name, make in MAKERS.items()}))
"""


def assert_memory_of_one_sample(file):
    """Compare the peak memory of 6 and of 60 samples of each maker in a test file."""
    arguments = [sys.executable, "-c", PEAK, Path(file).stem, str(Path(__file__).parent)]
    done = commands.run(arguments, 120, folder=Path(file).parent)
    assert done.ok, done.output
    for name, (few, many) in json.loads(done.output.splitlines()[-1]).items():
        # one frame may hold more cars than another, but not ten times as many
        assert many < 2 * few, name
