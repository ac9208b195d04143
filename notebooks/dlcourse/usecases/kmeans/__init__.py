"""K-means on ranks with daal4py: every rank holds a part of the points.

    def train(pixels):
        return kmeans.fit(kmeans.share(pixels), clusters=16)

    fits = cluster.run(train, pixels)                             # one Fit per rank, all alike
    cluster.run(kmeans.quantise, "photo.jpg", 16, "quantised.png")  # rank 0 writes

`check`, `train` and `write` are what `dlguide usecase kmeans` calls.

daal4py's ranks are all those that MPI has started, so all of them must call.
"""

from dlcourse.usecases.kmeans.assigning import assign, inertia
from dlcourse.usecases.kmeans.case import check, train, write
from dlcourse.usecases.kmeans.fitting import Fit, fit, share
from dlcourse.usecases.kmeans.quantising import Quantised, quantise
from dlcourse.usecases.kmeans.seeding import Seeds, plus_plus
from dlcourse.usecases.kmeans.working import Crew, crew

__all__ = [
    "Crew",
    "Fit",
    "Quantised",
    "Seeds",
    "assign",
    "check",
    "crew",
    "fit",
    "inertia",
    "plus_plus",
    "quantise",
    "share",
    "train",
    "write",
]
