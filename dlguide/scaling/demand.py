"""What a training asks of its storage: bytes, samples and opened files per second.

The guide works it out for ResNet-50 on 448 nodes in one hour. It finds that bandwidth is no
burden for a node and doubts that a shared file system can give the sum of it. The sum is about
1 GB/s, which a parallel file system gives. What it may not give is the other number that comes
out here: 32 000 files opened per second, in random order, when every image is a file.
"""

from __future__ import annotations

from dataclasses import dataclass

from dlguide.errors import require_count, require_positive


@dataclass(frozen=True)
class Training:
    """A training as its storage sees it.

    Args:
        samples: samples in the data set (count).
        sample_nbytes: mean size of a sample as it is stored (bytes).
        epochs: how often each sample is read (count).
        nodes: nodes that share each epoch's samples (count).
        seconds: time of the whole run (s).
        samples_per_file: samples in one file; 1 where each image is a file (count).
    """

    samples: int
    sample_nbytes: float
    epochs: int
    nodes: int
    seconds: float
    samples_per_file: float = 1

    def __post_init__(self) -> None:
        for name in ("samples", "epochs", "nodes"):
            require_count(getattr(self, name), name)
        for name in ("sample_nbytes", "seconds", "samples_per_file"):
            require_positive(getattr(self, name), name)


@dataclass(frozen=True)
class Demand:
    """What must arrive so that the training never waits."""

    samples_per_node: float
    samples_per_s_per_node: float
    samples_per_s: float
    bytes_per_s_per_node: float
    bytes_per_s: float
    opens_per_s_per_node: float
    opens_per_s: float


def of(training: Training) -> Demand:
    """Work out what a training asks of its storage.

    All nodes together read `samples * epochs` samples in `seconds`:

        samples_per_s = samples * epochs / seconds
        bytes_per_s = samples_per_s * sample_nbytes
        opens_per_s = samples_per_s / samples_per_file

    and each node its part of these. Leaves out what is kept in memory between epochs, the
    validation, and that reads come in bursts: each is the mean over the run.

    Args:
        training: the run.

    Returns:
        Demand: per node and in all.

    Source:
        PRACE Best Practice Guide Deep Learning (2019), section 6.2.4.

    >>> demand = of(GUIDE)
    >>> round(demand.opens_per_s), round(demand.bytes_per_s / 1e9, 2)
    (32000, 1.05)
    """
    samples_per_s = training.samples * training.epochs / training.seconds
    bytes_per_s = samples_per_s * training.sample_nbytes
    opens_per_s = samples_per_s / training.samples_per_file
    return Demand(
        samples_per_node=training.samples * training.epochs / training.nodes,
        samples_per_s_per_node=samples_per_s / training.nodes,
        samples_per_s=samples_per_s,
        bytes_per_s_per_node=bytes_per_s / training.nodes,
        bytes_per_s=bytes_per_s,
        opens_per_s_per_node=opens_per_s / training.nodes,
        opens_per_s=opens_per_s,
    )


# PRACE guide, table 5 and section 6.2.4. The 42 GB are an LMDB of images made smaller.
GUIDE = Training(
    samples=1_280_000, sample_nbytes=42e9 / 1_280_000, epochs=90, nodes=448, seconds=3600.0
)
# The same run on the images as they are published: 138 GB, so 108 KB each.
GUIDE_ORIGINAL_IMAGES = Training(
    samples=1_280_000, sample_nbytes=138e9 / 1_280_000, epochs=90, nodes=448, seconds=3600.0
)
