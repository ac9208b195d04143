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


@pytest.mark.parametrize("task", ["autoencoder", "generator", "discriminator", "forecaster"])
def test_nets_that_are_no_classifiers_are_refused_with_the_next_step(task):
    for name in models.names(task):
        with pytest.raises(ValueError, match="`model` must be a classifier") as caught:
            settings(name).check()
        assert str(caught.value).endswith("Build it with `models.build` and give it with a `loss`.")


def test_classifiers_take_data_of_their_shape_and_no_other():
    for name in models.names("digits"):
        settings(name).check()
    settings("resnet20", "cifar10").check()
    settings("cnn_3d", clips((8, 32, 32, 1))).check()
    with pytest.raises(ValueError, match=r"hold images of 32 x 32 x 3 for resnet20, got 'mnist of"):
        settings("resnet20").check()
    with pytest.raises(ValueError, match=r"of 8 x 32 x 32 x 1 for cnn_3d, got .* Use a function"):
        settings("cnn_3d").check()
