"""Two nets trained against each other: the game of a GAN, on one process or on ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide.errors import require, require_count, require_known, require_positive

if TYPE_CHECKING:
    import keras
    from numpy.typing import ArrayLike


def non_saturating(real: Any, fake: Any) -> tuple[Any, Any]:
    """Losses of Goodfellow's GAN, with the generator's that keeps its slope.

        discriminator: -mean log D(real) - mean log(1 - D(fake))
        generator:     -mean log D(fake)

    D is the sigmoid of the logits. The generator's has the fixed point of the minimax game, and
    pulls where that one is flat: where the discriminator is sure that a sample is false.

    Source:
        Goodfellow et al. 2014 (arXiv:1406.2661), equation 1 and section 3.
    """
    import tensorflow as tf

    judge = tf.reduce_mean(tf.nn.softplus(-real)) + tf.reduce_mean(tf.nn.softplus(fake))
    return judge, tf.reduce_mean(tf.nn.softplus(-fake))


def minimax(real: Any, fake: Any) -> tuple[Any, Any]:
    """Losses of the minimax game as it is written: what one wins the other loses.

        discriminator: -mean log D(real) - mean log(1 - D(fake))
        generator:                          mean log(1 - D(fake))

    Source:
        Goodfellow et al. 2014 (arXiv:1406.2661), equation 1.
    """
    import tensorflow as tf

    lost = tf.reduce_mean(tf.nn.softplus(fake))
    return tf.reduce_mean(tf.nn.softplus(-real)) + lost, -lost


LOSSES = {"non-saturating": non_saturating, "minimax": minimax}


def dense_pair(
    seed: int = 0,
    features: int = 2,
    latent: int = 4,
    hidden: int = 64,
    conditions: int = 0,
    dtype: str = "float32",
) -> tuple[keras.Model, keras.Model]:
    """Build a small generator and a small discriminator of dense layers.

    Two hidden layers each. The same arguments give the same weights on every rank. With
    `conditions` both nets take so many more numbers at the end of their input (a label,
    one-hot), and the generator passes them on behind its sample, where the discriminator
    looks for them: a conditional GAN.

    Source:
        Mirza and Osindero 2014 (arXiv:1411.1784), section 3.2, for the conditions.
    """
    import keras

    from dlguide.models.layers import SeededLayers

    require_count(seed, "seed", least=0)
    for name, value in (("features", features), ("latent", latent), ("hidden", hidden)):
        require_count(value, name)
    require_count(conditions, "conditions", least=0)
    require_known(dtype, ("float32", "float64"), "dtype")

    def dense(name: str, inputs: int, outputs: int, activation: str) -> tuple[Any, Any]:
        make = SeededLayers(name, seed, dtype, seed, start="HeNormal")
        x = given = keras.Input((inputs,), dtype=dtype)
        for number in (1, 2):
            x = make("Dense", x, hidden, activation=activation, name=f"hidden{number}")
        return given, make.logits(x, outputs)

    given, x = dense("dense_generator", latent + conditions, features, "relu")
    if conditions:
        x = keras.layers.Concatenate(dtype=dtype)([x, given[:, latent:]])
    generator = keras.Model(given, x, name="dense_generator")
    given, x = dense("dense_discriminator", features + conditions, 1, "leaky_relu")
    return generator, keras.Model(given, x, name="dense_discriminator")


def rows_of(array: Any) -> Callable[[Any, int], Any]:
    """Make a source of true samples from an array: rows at random, with replacement."""
    import tensorflow as tf

    held = tf.constant(array)

    def draw(seed: Any, samples: int) -> Any:
        rows = tf.random.stateless_uniform((samples,), seed, 0, len(array), tf.int32)
        return tf.gather(held, rows)

    return draw


class Game:
    """A generator and a discriminator, their optimizers, and the steps against each other.

    In each step the discriminator learns from `batch` true and `batch` generated samples, then
    the generator from `batch` new ones, judged by the discriminator as it is now. Every random
    number follows from `seed` and the number of the step. On ranks all draw the same global
    batch and each takes its own rows; the gradients of *both* nets are averaged, so p ranks play
    the game of one process with the same batch, up to rounding. Batch normalisation breaks this,
    as its statistics are those of one rank's rows.

    All ranks must play equally many steps. A step moves the bytes of both nets' gradients, and
    those of the discriminator once more for each further one of `judge_steps`.

    Source:
        Goodfellow et al. 2014 (arXiv:1406.2661), algorithm 1; Radford et al. 2015
        (arXiv:1511.06434), section 4, for beta_1; Arjovsky et al. 2017 (arXiv:1701.07875),
        algorithm 1, for `judge_steps` and `clip`.
    """

    def __init__(
        self,
        generator: keras.Model,
        discriminator: keras.Model,
        draw: Callable[[Any, int], Any],
        batch: int = 64,
        loss: str | Callable[[Any, Any], tuple[Any, Any]] = "non-saturating",
        rates: tuple[float, float] = (1e-3, 1e-3),
        noise: Callable[[Any, int], Any] | None = None,
        judge_steps: int = 1,
        clip: float | None = None,
        seed: int = 0,
        parallel: bool = False,
    ):
        import keras
        import tensorflow as tf

        self.generator, self.discriminator = generator, discriminator
        self.batch, self.judge_steps = require_count(batch, "batch"), judge_steps
        require_count(judge_steps, "judge_steps")
        require_count(seed, "seed", least=0)
        self.clip = None if clip is None else require_positive(clip, "clip")
        known = callable(loss) or require_known(loss, LOSSES, "loss")
        self.losses = loss if known is True else LOSSES[loss]
        self._draw, self._noise, self.seed = draw, noise or self._normal, seed
        self._optimizers = [
            keras.optimizers.Adam(require_positive(rate, "rates"), beta_1=0.5) for rate in rates
        ]
        for optimizer, net in zip(self._optimizers, (generator, discriminator), strict=True):
            optimizer.build(net.trainable_variables)
        self._average, self._rows = self._shared(parallel)
        self._stream = tf.Variable(0, dtype=tf.int32, trainable=False)
        self._step = tf.function(self._one_step, jit_compile=False, autograph=False)

    def play(self, steps: int) -> np.ndarray:
        """Play on from where the game stands."""
        losses = [self._step() for _ in range(require_count(steps, "steps"))]
        return np.asarray([[float(one) for one in pair] for pair in losses])

    def sample(self, samples: int, seed: int = 1) -> np.ndarray:
        """Let the generator give samples.

        The same seed gives the same random numbers at any time of the game, so that one sees
        what becomes of them.
        """
        codes = self._noise((-1, seed), require_count(samples, "samples"))
        return np.asarray(self.generator(codes, training=False))

    def _normal(self, seed: Any, samples: int) -> Any:
        import tensorflow as tf

        codes = tf.random.stateless_normal((samples, self.generator.input_shape[1]), seed)
        return tf.cast(codes, self.generator.compute_dtype)

    def _shared(self, parallel: bool) -> tuple[Callable[[Any, str], Any], Callable[[Any], Any]]:
        """How gradients are averaged, and which rows of the global batch are this rank's."""
        if not parallel:
            return lambda gradients, name: gradients, lambda rows: rows
        import dlguide.horovod as hvd

        rank, ranks = hvd.rank(), hvd.size()
        even = f"be divided evenly by the {ranks} ranks"
        require(self.batch % ranks == 0, "batch", even, self.batch)
        nets = (self.generator, self.discriminator)
        hvd.broadcast_variables([v for net in nets for v in net.variables], root_rank=0)
        return (
            lambda gradients, name: hvd.grouped_allreduce(gradients, name=name),
            lambda rows: rows[rank::ranks],
        )

    def _next(self, source: Callable[[Any, int], Any]) -> Any:
        import tensorflow as tf

        self._stream.assign_add(1)
        drawn = source(tf.stack([self.seed, self._stream.read_value()]), self.batch)
        return tf.cast(self._rows(drawn), self.generator.compute_dtype)

    def _one_step(self) -> tuple[Any, Any]:
        import tensorflow as tf

        generator, judge = self.generator, self.discriminator
        for number in range(self.judge_steps):
            real, codes = self._next(self._draw), self._next(self._noise)
            fake = generator(codes, training=True)
            with tf.GradientTape() as tape:
                logits = judge(real, training=True), judge(fake, training=True)
                judged = self.losses(*logits)[0]
            self._update(1, judge, tape.gradient(judged, judge.trainable_variables), number)
            if self.clip is not None:
                for weight in judge.trainable_variables:
                    weight.assign(tf.clip_by_value(weight, -self.clip, self.clip))
        codes = self._next(self._noise)
        with tf.GradientTape() as tape:
            scores = judge(generator(codes, training=True), training=True)
            made = self.losses(tf.zeros_like(scores), scores)[1]
        self._update(0, generator, tape.gradient(made, generator.trainable_variables), 0)
        return judged, made

    def _update(self, which: int, net: Any, gradients: Any, number: int) -> None:
        gradients = self._average(gradients, f"{net.name}{number}")
        self._optimizers[which].apply(gradients, net.trainable_variables)


def frechet_distance(one: ArrayLike, other: ArrayLike) -> float:
    """Compare two sets of samples by mean and covariance of their features.

        d^2 = |m1 - m2|^2 + tr(C1 + C2 - 2 (C1^1/2 C2 C1^1/2)^1/2)

    0 for equal means and covariances, whatever else is different. With features of Inception-v3
    this is the usual FID; with others, such as those of a small classifier, it is a number of
    the same kind that must not be compared with published ones. It is biased upwards for few
    samples: compare sets of equal size, and give the distance of two sets of true samples
    beside it.

    Source:
        Dowson and Landau, J. Multivariate Analysis 12 (1982), 450-455; Heusel et al. 2017
        (arXiv:1706.08500), equation 6.

    >>> frechet_distance([[0.0], [2.0]], [[3.0], [5.0]])
    9.0
    """
    sets = [np.asarray(each, float) for each in (one, other)]
    for name, each in zip(("one", "other"), sets, strict=True):
        table = each.ndim == 2 and len(each) >= 2
        require(table, name, "be samples x features with at least 2 samples", each.shape)
    widths = tuple(each.shape[1] for each in sets)
    require(widths[0] == widths[1], "other", f"have the {widths[0]} features of `one`", widths[1])
    means = [each.mean(axis=0) for each in sets]
    first, second = (np.atleast_2d(np.cov(each, rowvar=False)) for each in sets)
    values, vectors = np.linalg.eigh(first)
    root = vectors * np.sqrt(np.clip(values, 0, None)) @ vectors.T
    shared = np.sqrt(np.clip(np.linalg.eigvalsh(root @ second @ root), 0, None)).sum()
    apart = float(((means[0] - means[1]) ** 2).sum())
    return apart + float(np.trace(first) + np.trace(second) - 2 * shared)
