"""Training from a pipeline (dlguide.training.feed) is training from arrays, on any ranks."""

import io
import json
import shutil
import time

import numpy as np
import pytest
from fitting import fit
from lanes import long
from on_ranks import on_ranks
from PIL import Image

from dlguide.data import datasets, formats
from dlguide.data import input_pipeline as ip

TRAIN, TEST = 41, 203


def digits(folder, name, images, labels, wrong=None):
    """Write digits as PNG files in TFRecord; one may be no image."""
    with formats.create(folder / name, "tfrecord", shard_samples=30) as writer:
        for number, (image, label) in enumerate(zip(images, labels, strict=True)):
            file = io.BytesIO()
            Image.fromarray((image[..., 0] * 255).round().astype(np.uint8)).save(file, "png")
            data = b"no image" if number == wrong else file.getvalue()
            writer.append(formats.Sample(data, (int(label),)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """MNIST's first digits for training and testing, and once with one that is damaged."""
    folder = tmp_path_factory.mktemp("digits")
    mnist = datasets.load("mnist").first(TRAIN, TEST)
    digits(folder, "train", mnist.train_images, mnist.train_labels)
    digits(folder, "damaged", mnist.train_images, mnist.train_labels, wrong=17)
    digits(folder, "test", mnist.test_images, mnist.test_labels)
    digits(folder, "test-damaged", mnist.test_images, mnist.test_labels, wrong=150)
    labels = mnist.train_labels.copy()
    labels[23] = 10
    digits(folder, "label", mnist.train_images, labels)
    digits(folder, "tall", np.pad(mnist.train_images, ((0, 0), (1, 1), (0, 0), (0, 0))), labels)
    (folder / "other").mkdir()
    digits(folder / "other", "train", mnist.train_images[:-1], mnist.train_labels[:-1])
    return folder


def trainings(stored_in, train, tested, names):
    """Train from arrays and from pipelines, and fail on a rank whose data are damaged."""
    import os

    from fitting import fit

    from dlguide.data import datasets
    from dlguide.data import input_pipeline as ip

    rank = int(os.environ.get("PMI_RANK", -1))
    mnist = datasets.load("mnist").first(train, tested)
    stored = {
        name: ip.Pipeline(os.path.join(stored_in, name), 5, channels=1, readers=2)
        for name in ("train", "damaged", "label", "tall", "other/train", "test", "test-damaged")
    }
    ways = {"batch_per_rank": 10, "epochs": 2, "dropout": 0.0, "seed": 3, "parallel": rank >= 0}
    result = {"different": {}, "accuracy": {}, "errors": {}}
    for name, settings in (
        ("in order", {"model": "mlp", "optimizer": "sgd", "shuffle": False}),
        # 33 = 30 + 3: on 3 ranks one sample each; 31 = 30 + 1: ranks without any
        ("33", {"model": "mlp", "samples": 33}),
        ("31", {"model": "mnist_cnn_bn", "samples": 31}),
    ):
        if name not in names:
            continue
        of_arrays = fit(data=mnist, **ways, **settings)
        run = fit(data=stored["train"], test=stored["test"], **ways, **settings)
        result["different"][name] = [
            run.weights_digest == of_arrays.weights_digest,
            run.loss == of_arrays.loss,
            run.steps_per_epoch == of_arrays.steps_per_epoch,
            run.samples == of_arrays.samples,
        ]
        result["accuracy"][name] = (run.test_accuracy, of_arrays.test_accuracy)
        result["name"] = run.data
        mixed = fit(data=stored["train"], test=mnist, **ways, **settings)
        result["tested on arrays"] = mixed.test_accuracy == of_arrays.test_accuracy

    for name, settings in (
        ("damaged", {"data": stored["damaged"], "evaluate": False}),
        ("label", {"data": stored["label"], "evaluate": False}),
        ("tall", {"data": stored["tall"], "evaluate": False}),
        ("apart", {"data": stored["other/train" if rank > 0 else "train"], "evaluate": False}),
        ("test", {"data": stored["train"], "test": stored["test-damaged"]}),
        ("no test", {"data": stored["train"]}),
        ("batch", {"data": stored["train"], "batch_per_rank": 42, "evaluate": False}),
    ):
        if name not in names:
            continue
        try:
            fit(**{"model": "mlp", **ways, **settings})
        except Exception as error:
            result["errors"][name] = f"{type(error).__name__}: {error}"
    return result


# Each training costs seconds on each rank: what one number of ranks shows others need not.
NAMES = {
    1: ("in order", "31", "damaged", "label", "tall", "test", "no test", "batch"),
    2: ("33", "damaged", "label", "tall", "apart", "test"),
    3: ("31", "apart"),
}


@pytest.mark.parametrize("ranks", [1, 2, *long(3)])
def test_weights_and_losses_are_those_of_arrays_and_all_ranks_fail_together(
    ranks, folder, tmp_path
):
    given = {"stored_in": str(folder), "train": TRAIN, "tested": TEST, "names": NAMES[ranks]}
    if ranks == 1:
        results = [trainings(**given)]
    else:
        results = on_ranks(ranks, trainings, tmp_path, 240, **given)
    for found in results:
        assert all(all(same) for same in found["different"].values()), found["different"]
        for ours, theirs in found["accuracy"].values():
            assert ours == theirs
        assert found["tested on arrays"]
        assert found["name"] == "train"
    errors = [found["errors"] for found in results]
    assert all(one == errors[0] for one in errors), errors
    told = {
        "damaged": ("record 17", "no image that can be decoded"),
        "label": ("record 23", "has label 10, must be from 0 to 9"),
        "tall": ("images of (30, 28, 1), but the model takes (28, 28, 1)",),
        "apart": ("`data`",),
        "test": ("record 150",),
        "no test": ("`test` must be a Dataset or a Pipeline where `data` is a Pipeline",),
        "batch": ("`batch_per_rank` must be at most",),
    }
    assert errors[0].keys() == told.keys() & set(NAMES[ranks])
    for name, text in errors[0].items():
        assert all(words in text for words in told[name]), text


def test_waiting_is_the_part_of_a_step_before_its_batch(folder, monkeypatch):
    import tensorflow as tf

    read = ip.Epoch.__next__

    def slowly(epoch):
        time.sleep(0.02)
        return read(epoch)

    def resting(labels, outputs):
        def rest(one):
            time.sleep(0.01)
            return one

        zeros = tf.zeros_like(outputs[:, 0])
        return tf.ensure_shape(tf.numpy_function(rest, [zeros], zeros.dtype), zeros.shape)

    monkeypatch.setattr(ip.Epoch, "__next__", slowly)
    pipeline = ip.Pipeline(folder / "train", 5, channels=1)
    run = fit(
        "mlp", pipeline, epochs=2, batch_per_rank=10, evaluate=False, parallel=False,
        metrics={"rest": resting},
    )  # fmt: skip
    assert len(run.wait_s) == len(run.step_s) == 2 * 5
    assert min(run.wait_s) >= 0.02
    computing = [whole - wait for whole, wait in zip(run.step_s, run.wait_s, strict=True)]
    assert min(computing) >= 0.01


def test_pipelines_that_give_other_samples_are_told_apart(folder, tmp_path):
    train = ip.Pipeline(folder / "train", 5, channels=1)
    shutil.copytree(folder / "train", tmp_path / "train")
    same = ip.Pipeline(tmp_path / "train", 7, channels=1, threads=2, cache="bytes", seed=3)
    assert same.fingerprint() == train.fingerprint()
    assert json.loads(json.dumps(train.fingerprint())) == train.fingerprint()
    mnist = datasets.load("mnist").first(TRAIN, 1)
    (tmp_path / "again").mkdir()  # as many of the same name, with other labels
    digits(tmp_path / "again", "train", mnist.train_images, mnist.train_labels[::-1])
    files = [(folder / "train" / f"{number}.png", number) for number in range(4)]
    swapped = [(path, 3 - label) for path, label in files]
    images = np.zeros((4, 8, 8, 1), np.uint8)
    arrays = datasets.Dataset("a", images, np.arange(4), images, np.arange(4))
    others = datasets.Dataset("a", images, np.arange(4)[::-1].copy(), images, np.arange(4))
    different = [
        one.fingerprint()
        for one in (
            train,
            train.replace(samples=20),
            train.replace(augment=(ip.Flip(),)),
            train.replace(order=ip.BlockShuffle(4, 8)),
            train.replace(channels=3),
            ip.Pipeline(folder / "other" / "train", 5, channels=1),
            ip.Pipeline(tmp_path / "again" / "train", 5, channels=1),
            ip.Pipeline(files, 2),
            ip.Pipeline(swapped, 2),
            ip.Pipeline(arrays, 2),
            ip.Pipeline(others, 2),
        )
    ]
    for number, one in enumerate(different):
        assert one not in different[:number]
