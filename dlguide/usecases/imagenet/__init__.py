"""ResNet-50's road on CPUs, the guide's section 6.2: in small by default, at its size with `real`.

with Cluster(ranks=2) as cluster:
    outcomes = cluster.run(imagenet.train)
print(outcomes[0].summary())
imagenet.picture(outcomes[0])
"""

from dlguide.usecases.imagenet.comparing import findings
from dlguide.usecases.imagenet.data import augmentation, find, pictures, pipelines
from dlguide.usecases.imagenet.outcome import Curve, Ending, Outcome
from dlguide.usecases.imagenet.planning import check
from dlguide.usecases.imagenet.road import GUIDE, PUBLISHED, SMALL, Iterations, Road
from dlguide.usecases.imagenet.stepping import step
from dlguide.usecases.imagenet.training import train
from dlguide.usecases.imagenet.way import build_net
from dlguide.usecases.imagenet.writing import picture, write

__all__ = [
    "GUIDE",
    "PUBLISHED",
    "SMALL",
    "Curve",
    "Ending",
    "Iterations",
    "Outcome",
    "Road",
    "augmentation",
    "build_net",
    "check",
    "find",
    "findings",
    "picture",
    "pictures",
    "pipelines",
    "step",
    "train",
    "write",
]
