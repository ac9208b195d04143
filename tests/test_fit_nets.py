"""`fit` takes every net that tells classes apart by its name, and no other."""

import numpy as np
import pytest

from dlguide import models
from dlguide.data.datasets import Dataset
from dlguide.training.config import TrainingJob


def settings(net, data="mnist"):
    return TrainingJob(model=net, data=data, batch_per_rank=2)


def clips(shape):
    images, labels = np.zeros((4, *shape), "float32"), np.zeros(4, "int32")
    return Dataset("clips", images, labels, images, labels)


def test_classifiers_take_data_of_their_shape_and_no_other():
    for name in models.names("digits"):
        settings(name).check()
    settings("resnet20", "cifar10").check()
    settings("resnet20", clips((32, 32, 3))).check()
    with pytest.raises(ValueError, match=r"hold images of 32 x 32 x 3 for resnet20, got 'mnist of"):
        settings("resnet20").check()
    with pytest.raises(ValueError, match=r"of 32 x 32 x 3 for resnet20, got .* a function as"):
        settings("resnet20", clips((8, 32, 32, 1))).check()
    with pytest.raises(ValueError, match="`model` must be one of mlp, mnist_cnn, "):
        settings("resnet50").check()
