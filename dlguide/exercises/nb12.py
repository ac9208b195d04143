"""Checks of the exercises of notebook 12: codes, the best judge, other games, games on ranks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from dlguide.exercises import answered, expect, expect_close, expect_function
from dlguide.exercises.matching import expect_reason
from dlguide.exercises.on_ranks import results

RATE, STEPS = 0.1, 6
WHY = {  # 12-2: what speaks against the other reasons
    "A": "What does your function return for it? It is a finite number.",
    "C": "That is the case p = q. Here the judge is right about every sample.",
    "D": "It never does, in no game, and yet it learns where the two overlap.",
}


def exercise_12_1(images: Callable[..., Any]) -> str:
    """Check from how many images on a compression by an autoencoder saves bytes.

    Args:
        images: called with the bytes of an image, the numbers of its code, the bytes of one
            number, and the weights of the decoder; returns the smallest count of images.

    Returns:
        str: what it means.
    """
    expect_function(images)
    hidden, pixels = 256, 784
    for code, number_nbytes in ((2, 4), (32, 4), (32, 1), (128, 2), (0, 4), (195, 4)):
        weights = (code + 1) * hidden + (hidden + 1) * pixels
        came = answered(images(pixels, code, number_nbytes, weights))
        saved = pixels - code * number_nbytes
        right = 4 * weights // saved + 1
        case = f"for a code of {code} numbers of {number_nbytes} bytes"
        hints = {
            math.ceil(4 * weights / pixels): "Does the code of an image cost nothing?",
            1: "Who gets only codes cannot see an image: the decoder must be sent, once.",
            weights // saved + 1: "A weight of the decoder takes 4 bytes.",
        }
        hint = "Bytes saved by each image, against bytes spent once."
        if isinstance(came, (int, float, np.number)):
            near = 0 < abs(came - right) <= 1
            exact = "Fewer bytes, not equally many; and images are whole."
            hint = exact if near else hints.get(came, hint)
        expect(came == right, f"the smallest number of images {case}", came, hint)
    never = answered(images(pixels, 196, 4, 250_000))
    hint = "A code as large as the image saves nothing: then return None."
    expect(never is None, "None, as it never pays", "None" if never is None else never, hint)
    right = 4 * (33 * hidden + (hidden + 1) * pixels) // (pixels - 128) + 1
    return f"With 32 numbers it pays from {right} images on: a decoder is a book of codes."


def exercise_12_2(judge: Callable[..., Any], why: str) -> str:
    """Check the best discriminator between two distributions, and what the game is worth.

    Args:
        judge: called with two arrays of probabilities (true, generated), each with the sum 1;
            returns the best D in each bin (0.5 where nobody ever is) and the value of the game.
        why: the letter of the reason why distributions wholly apart give no direction.

    Returns:
        str: what it means.
    """
    expect_function(judge)
    random = np.random.default_rng(12)
    p, q = random.dirichlet(np.ones(6)), random.dirichlet(np.ones(6))
    apart = np.array([0.5, 0.5, 0, 0, 0, 0]), np.array([0, 0, 0, 0.25, 0.75, 0])
    partly = np.array([0.2, 0.8, 0, 0, 0, 0]), np.array([0, 0.5, 0.5, 0, 0, 0])
    cases = {"different": (p, q), "alike": (p, p), "partly apart": partly, "wholly apart": apart}
    values = {}
    for name, (true, made) in cases.items():
        with np.errstate(all="ignore"):
            came = answered(judge(true.copy(), made.copy()))
        pair = isinstance(came, tuple | list) and len(came) == 2
        expect(pair, "two results: D in each bin, and the value", came)
        both = true + made
        best = np.divide(true, both, out=np.full(6, 0.5), where=both > 0)
        hint = "D asks: of all that land in this bin, what share is true?"
        if np.shape(came[0]) == (6,) and not np.isfinite(np.asarray(came[0], float)).all():
            hint = "0 / 0: nobody is ever there. Say 0.5."
        expect_close(came[0], best, f"D for distributions that are {name}", hint, 1e-9)
        first = np.log(best[true > 0]) @ true[true > 0]
        second = np.log(1 - best[made > 0]) @ made[made > 0]
        values[name] = first + second
        text = f"the value for distributions that are {name}"
        number = isinstance(came[1], (float, int, np.number))
        if number and not np.isfinite(came[1]):
            hint = "0 log 0 counts 0: sum only over the bins that the distribution visits."
        elif number and abs(came[1] + first + second) < 1e-9:
            hint = "The value is what the judge wants to be large: it is never above 0."
        else:
            hint = "Mean of log D over the true ones, plus mean of log(1 - D) over the made ones."
        expect_close(came[1], first + second, text, hint, 1e-9)
    expect_reason(why, "B", WHY, "the reason why the generator gets no direction")
    return (
        f"From {values['alike']:.3f} (-log 4: nothing to tell) to {values['wholly apart']:.3f} "
        "(all to tell). Wholly apart it is 0 however far apart: there it shows no way."
    )


def exercise_12_3(wasserstein: Callable[..., Any]) -> str:
    """Check the losses of a Wasserstein GAN.

    Args:
        wasserstein: called with the critic's scores of true and of generated samples, arrays of
            shape (batch, 1); returns the loss of the critic and that of the generator.

    Returns:
        str: what it means.
    """
    expect_function(wasserstein)
    random = np.random.default_rng(13)
    for shape, moved in (((50, 1), 0.0), ((8, 1), 3.0), ((64, 1), -40.0)):
        real, fake = random.normal(size=shape), random.normal(moved, 1, size=shape)
        came = answered(wasserstein(real, fake))
        pair = isinstance(came, tuple | list) and len(came) == 2
        expect(pair, "two losses: of the critic, of the generator", came)
        came = [np.asarray(each, float) for each in came]
        hint = "One number for the batch: take the mean over it."
        scalar = came[0].shape == came[1].shape == ()
        expect(scalar, "two numbers", f"shapes {came[0].shape} and {came[1].shape}", hint)
        wanted = fake.mean() - real.mean(), -fake.mean()
        swapped = np.isclose(came[0], -wanted[0])
        hint = "No logarithm and no sigmoid: scores as they are."
        hint = "A loss is what falls: true ones must score high." if swapped else hint
        expect_close(came[0], wanted[0], "the loss of the critic", hint, 1e-5)
        hint = "The generator wants its samples to score high; true ones are not its business."
        expect_close(came[1], wanted[1], "the loss of the generator", hint, 1e-5)
    _expect_playable(wasserstein)
    return "Its slope stays 1 at any distance; only the clipped weights keep it from growing."


def _expect_playable(losses: Callable[..., Any]) -> None:
    """Go on when the losses can be computed inside TensorFlow's graph, as the game does."""
    import tensorflow as tf

    scores = tf.constant([[1.0], [2.0]])
    try:
        tf.function(losses)(scores, scores)
    except (AttributeError, NotImplementedError, TypeError) as error:
        hint = "The numbers are right, but NumPy cannot follow there: take `tf.reduce_mean`."
        expect(False, "losses that a TensorFlow graph can compute", type(error).__name__, hint)


def exercise_12_4(conditioned: Callable[..., Any]) -> str:
    """Check that samples or codes get their label as further numbers.

    Args:
        conditioned: called with an array of shape (batch, numbers) or (batch, height, width,
            channels), labels of shape (batch,) and the number of classes; returns the array with
            the one-hot label appended along the last axis.

    Returns:
        str: what it means.
    """
    expect_function(conditioned)
    random = np.random.default_rng(14)
    for shape, classes in (((5, 4), 3), ((12, 100), 10), ((6, 28, 28, 1), 10), ((4, 3, 2, 3), 2)):
        samples = random.normal(size=shape).astype("float32")
        labels = random.integers(0, classes, shape[0])
        came = answered(conditioned(samples.copy(), labels.copy(), classes))
        came = np.asarray(came)
        wanted = (*shape[:-1], shape[-1] + classes)
        hint = "Append a vector to a vector, and to an image one constant map for each class."
        expect(came.shape == wanted, f"the shape {wanted} for {shape}", f"{came.shape}", hint)
        hint = "The sample comes first and stays as it is."
        expect_close(came[..., : shape[-1]], samples, "the sample itself", hint, 1e-6)
        right = np.zeros((*wanted[:-1], classes))
        for row, label in enumerate(labels):
            right[row, ..., label] = 1
        hint = "1 at the sample's own label and 0 elsewhere, at every pixel."
        expect_close(came[..., shape[-1] :], right, "the label, one-hot", hint, 1e-6)
    return "Both nets must be told: a judge that does not know the label cannot ask for it."


def exercise_12_5(play: Callable[..., Any], cluster: Any) -> str:
    """Check on real ranks that both nets of a game are those of one process.

    Args:
        play: called with the communicator, the first weights of judge and generator, the rate,
            a list with (true rows, codes) of each step, the global batch, and two functions
            (judge, generator, true rows, codes -> sum of the judge's gradients) and (judge,
            generator, codes -> sum of the generator's); returns both weights.
        cluster: the learner's cluster.

    Returns:
        str: what it means.
    """
    expect_function(play)
    ranks = cluster.ranks
    random = np.random.default_rng(15)
    batch = 4 * ranks
    true = random.normal(2.0, 1.0, (STEPS, batch))
    codes = random.normal(0.0, 1.0, (STEPS, batch))
    judge, generator = np.array([0.3, -0.2]), np.array([0.5, 1.0])

    def judge_gradient(d: Any, g: Any, rows: Any, z: Any) -> Any:
        made = g[0] + g[1] * z
        real = -1 / (1 + np.exp(d[0] + d[1] * rows))
        fake = 1 / (1 + np.exp(-d[0] - d[1] * made))
        return np.array([real.sum() + fake.sum(), real @ rows + fake @ made])

    def generator_gradient(d: Any, g: Any, z: Any) -> Any:
        made = g[0] + g[1] * z
        slope = -d[1] / (1 + np.exp(d[0] + d[1] * made))
        return np.array([slope.sum(), slope @ z])

    def alone(factor: float = 1.0, late: bool = True) -> np.ndarray:
        d, g = judge.copy(), generator.copy()
        for rows, z in zip(true, codes, strict=True):
            before = d.copy()
            d = d - RATE * factor * judge_gradient(d, g, rows, z) / batch
            g = g - RATE * factor * generator_gradient(d if late else before, g, z) / batch
        return np.concatenate([d, g])

    def inputs(rank: int) -> tuple[Any, ...]:
        own = slice(4 * rank, 4 * rank + 4)
        steps = [(rows[own], z[own]) for rows, z in zip(true, codes, strict=True)]
        firsts = judge.copy(), generator.copy()
        return (*firsts, RATE, steps, batch, judge_gradient, generator_gradient)

    found = results(cluster, play, [inputs(rank) for rank in range(ranks)])
    pairs = all(isinstance(each, (tuple, list)) and len(each) == 2 for each in found)
    expect(pairs, "two results: the judge's weights, the generator's", found)
    came = [np.concatenate([np.ravel(one) for one in each]).astype(float) for each in found]
    expect(all(each.shape == (4,) for each in came), "two weights of each net", came[0])
    right = alone()
    spread = [
        max(float(np.abs(e - came[0])[net].max()) for e in came)
        for net in (slice(0, 2), slice(2, 4))
    ]
    for net, apart in zip(("judges", "generators"), spread, strict=True):
        hint = f"The ranks' {net} go separate ways: is their gradient summed over the ranks?"
        expect(apart == 0, f"equal {net} on all ranks", f"weights {apart:.2g} apart", hint)
    long = "The steps are too long: divide by the global batch."
    hints = (
        (alone(ranks), long),
        (alone(batch), long),
        (alone(late=False), "The generator asks the judge after its step, not before."),
    )
    for wrong, hint in hints:
        same = np.allclose(came[0], wrong, rtol=1e-9)
        differs = not np.allclose(wrong, right, rtol=1e-9)
        expect(not (same and differs), "the weights of one process", came[0], hint)
    hint = "In each step: the judge first, then the generator; each with the sum over all ranks."
    expect_close(came[0], right, f"the weights of one process with the batch {batch}", hint, 1e-9)
    if ranks == 1:
        return "But one rank alone hides a forgotten sum: try it on two."
    return "Two nets, two sums a step: the generator needs the judge of all ranks, not its own."
