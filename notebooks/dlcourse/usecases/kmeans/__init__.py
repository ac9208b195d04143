"""K-means on ranks with daal4py: every rank holds a part of the points.

    def train(pixels):
        return kmeans.fit(kmeans.share(pixels), clusters=16)

    fits = cluster.run(train, pixels)                             # one equal KMeansFit per rank
    cluster.run(kmeans.quantise, "photo.jpg", 16)                 # rank 0 has the picture

`check`, `train` and `write` are called by `dlguide usecase kmeans`. daal4py uses all ranks that MPI
has started, so all of them must call.
"""

from dlcourse.usecases.kmeans.clustering import (
    assign,
    fit,
    inertia,
    measure_threads,
    plus_plus,
    share,
)
from dlcourse.usecases.kmeans.photographs import OPTIONS, check, quantise, train, write
