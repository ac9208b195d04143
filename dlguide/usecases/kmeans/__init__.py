"""K-means on ranks with daal4py: every rank holds a part of the points.

    def train(pixels):
        return kmeans.fit(kmeans.share(pixels), clusters=16)

    fits = cluster.run(train, pixels)                             # one Fit per rank, all alike
    cluster.run(kmeans.quantise, "photo.jpg", 16, "quantised.png")  # rank 0 writes

`check`, `train` and `write` are what `dlguide usecase kmeans` calls.

daal4py's ranks are all those that MPI has started, so all of them must call.
"""

from dlguide.usecases.kmeans.assigning import assign, inertia
from dlguide.usecases.kmeans.case import check, train, write
from dlguide.usecases.kmeans.fitting import Fit, fit, share
from dlguide.usecases.kmeans.quantising import Quantised, quantise
from dlguide.usecases.kmeans.seeding import Seeds, plus_plus
from dlguide.usecases.kmeans.working import Crew, crew

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
