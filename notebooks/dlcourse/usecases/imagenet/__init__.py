"""ResNet-50's road on CPUs, the guide's section 6.2: in small by default, at its size with `real`.

with Cluster(ranks=2) as cluster:
    outcomes = cluster.run(imagenet.train)
print(outcomes[0].summary())
imagenet.picture(outcomes[0])
"""

from dlcourse.usecases.imagenet.comparing import findings
from dlcourse.usecases.imagenet.data import augmentation, find, pictures, pipelines
from dlcourse.usecases.imagenet.outcome import Curve, Ending, Outcome
from dlcourse.usecases.imagenet.planning import check
from dlcourse.usecases.imagenet.road import GUIDE, PUBLISHED, SMALL, Iterations, Road
from dlcourse.usecases.imagenet.stepping import step
from dlcourse.usecases.imagenet.training import train
from dlcourse.usecases.imagenet.way import build_net
from dlcourse.usecases.imagenet.writing import picture, write

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
