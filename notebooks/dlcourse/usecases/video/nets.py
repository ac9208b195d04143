"""A generator and a discriminator of video at several resolutions, and the step that trains both.

Both are made of one part for each resolution. With `until` the finer parts are left out: so the
pair grows while it is trained, and what the coarse parts have learnt stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dlguide.collectives.communicator import Communicator
from dlguide.errors import require, require_count, require_known
from dlguide.models.registry import SeededLayers

if TYPE_CHECKING:
    import keras

# Pixels of the coarsest resolution, and the filters of the parts that see every pixel.
COARSEST, EDGES = 8, 16
_RELU = {"padding": "same", "activation": "relu"}


def resolutions(size: int) -> tuple[int, ...]:
    """List the resolutions of a pair, each twice the one before.

    >>> resolutions(32)
    (8, 16, 32)
    """
    found = [COARSEST]
    while found[-1] < require_count(size, "size", least=COARSEST):
        found.append(2 * found[-1])
    require(found[-1] == size, "size", f"be {COARSEST} doubled a few times", size)
    return tuple(found)


def generator(
    size: int = 32,
    filters: int = 48,
    blocks: int = 3,
    frames: int = 6,
    volume: bool = False,
    seed: int = 0,
    dtype: str = "float32",
) -> keras.Model:
    """Build a generator that corrects a guess of the next frames, coarse things first.

    At each resolution a part sees the past frames and the guess, which the parts before have
    corrected, and adds its own correction:

        y_s = g_s + up(y_(s/2) - g_(s/2)) + part_s(past_s, g_s + up(...))

    Frames lie behind each other as channels, together with the place of each pixel. The coarsest
    part has residual blocks of 2-D convolutions, or of 3-D ones along time too (`volume`); the
    finer ones halve their map, have their blocks there, and put the edges back from the full map.
    The last layer of each part begins with zeros: an untrained generator returns the guess.

    Source:
        Mathieu, Couprie and LeCun 2015 (arXiv:1511.05440), section 2.2, for the resolutions;
        Aigner and Koerner 2018 (arXiv:1810.01325), FutureGAN, for 3-D convolutions.
    """
    import keras

    for name, value in (("filters", filters), ("blocks", blocks), ("frames", frames)):
        require_count(value, name)
    make = _maker("video_generator", seed, dtype)
    shape = (frames, size, size, 3)
    past, guess = (keras.Input(shape, dtype=dtype, name=name) for name in ("past", "guess"))
    outputs, correction = [], None
    whole = [_flat(make, each) for each in (past, guess)]
    for rows in resolutions(size):
        by = size // rows
        seen, now = (each if by == 1 else make("AveragePooling2D", each, by) for each in whole)
        base = now
        if correction is not None:
            finer = make("UpSampling2D", correction, 2, interpolation="bilinear")
            base = make("Add", [now, finer])
        x = make("Concatenate", [seen, base, _places(base)])
        part = _edge_part if rows > COARSEST else _volume_part if volume else _coarsest_part
        x = part(make, x, rows, filters, blocks, frames)
        zeros = {"kernel_initializer": "zeros", "padding": "same"}
        change = make("Conv2D", x, 3 * frames, 3, name=f"change{rows}", **zeros)
        corrected = make("Add", [base, change])
        correction = make("Subtract", [corrected, now])
        x = make("Reshape", corrected, (rows, rows, frames, 3))
        outputs.append(make("Permute", x, (3, 1, 2, 4), name=f"frames{rows}"))
    return keras.Model([past, guess], outputs, name="video_generator")


def discriminator(
    size: int = 32, filters: int = 16, frames: int = 12, seed: int = 0, dtype: str = "float32"
) -> keras.Model:
    """Build a discriminator that judges whole clips at each resolution by itself.

    3-D convolutions halve time, height and width until 4 pixels are left; what moves as nothing
    can move is seen by them, and not by a net that looks at frames. Each place gives a logit.

    Source:
        Mathieu et al. 2015 (arXiv:1511.05440), section 3.2; Isola et al. 2016
        (arXiv:1611.07004), section 3.2.2, for a logit at each place.
    """
    import keras

    for name, value in (("filters", filters), ("frames", frames)):
        require_count(value, name)
    make = _maker("video_discriminator", seed, dtype)
    inputs, logits = [], []
    for rows in resolutions(size):
        x = keras.Input((frames, rows, rows, 3), dtype=dtype, name=f"clip{rows}")
        inputs.append(x)
        width, left = filters, rows
        while left > 4:
            name = f"down{rows}_{left}"
            x = make("Conv3D", x, width, 3, 2, "same", name=name)
            x = make("LeakyReLU", x, negative_slope=0.2, name=f"{name}_relu")
            width, left = min(2 * width, 8 * filters), left // 2
        x = make("Conv3D", x, 1, 3, padding="same", name=f"judge{rows}")
        logits.append(make("Flatten", x, name=f"logits{rows}"))
    return keras.Model(inputs, logits, name="video_discriminator")


def until(model: keras.Model, stage: int) -> keras.Model:
    """Take the coarse parts of a generator or discriminator; the weights are shared."""
    import keras

    most = len(model.outputs)
    stage = require_count(stage, "stage")
    require(stage <= most, "stage", f"be at most the {most} resolutions", stage)
    inputs = model.inputs if model.name.endswith("generator") else model.inputs[:stage]
    return keras.Model(inputs, model.outputs[:stage], name=f"{model.name}_{stage}")


def build(config: Any) -> tuple[keras.Model, keras.Model]:
    """Build generator and discriminator of a `VideoConfig`, equal on every rank."""
    size, seed, dtype = config.size, config.seed, config.dtype
    return (
        generator(size, config.filters, config.blocks, 6, config.volume, seed, dtype),
        discriminator(size, config.discriminator_filters, 12, seed, dtype),
    )


def _maker(name: str, seed: int, dtype: str) -> SeededLayers:
    require_count(seed, "seed", least=0)
    require_known(dtype, ("float32", "float64"), "dtype")
    return SeededLayers(name, seed, dtype, seed, start="HeNormal")


def _flat(make: SeededLayers, x: Any) -> Any:
    """Put frames behind each other: (frames, s, s, 3) becomes (s, s, frames * 3)."""
    frames, rows, columns, channels = x.shape[1:]
    x = make("Permute", x, (2, 3, 1, 4))
    return make("Reshape", x, (rows, columns, frames * channels))


def _blocks(make: SeededLayers, kind: str, x: Any, filters: int, rows: int, blocks: int) -> Any:
    for number in range(blocks):
        name = f"block{rows}_{number}"
        x = make("Add", [x, make(kind, x, filters, 3, name=name, **_RELU)], name=f"{name}_add")
    return x


def _places(x: Any) -> Any:
    """Give row and column of each pixel, -0.5 to 0.5: what is near moves faster in a picture."""
    import keras
    import numpy as np

    rows, columns = (np.linspace(-0.5, 0.5, count) for count in x.shape[1:3])
    grid = np.stack(np.meshgrid(rows, columns, indexing="ij"), -1).astype(x.dtype)
    return keras.ops.ones_like(x[..., :2]) * grid


def _coarsest_part(
    make: SeededLayers, x: Any, rows: int, filters: int, blocks: int, frames: int
) -> Any:
    """Features of the coarsest frames: time lies in the channels."""
    x = make("Conv2D", x, filters, 3, name=f"in{rows}", **_RELU)
    return _blocks(make, "Conv2D", x, filters, rows, blocks)


def _volume_part(
    make: SeededLayers, x: Any, rows: int, filters: int, blocks: int, frames: int
) -> Any:
    """Features of the coarsest frames: time is a separate axis."""
    thin = max(1, filters // 3)
    x = make("Reshape", x[..., : 6 * frames], (rows, rows, 2, frames, 3))
    # past and guess of one number side by side, as channels
    x = make("Permute", x, (4, 1, 2, 3, 5))
    x = make("Reshape", x, (frames, rows, rows, 6))
    x = make("Conv3D", x, thin, 3, name=f"in{rows}", **_RELU)
    x = _blocks(make, "Conv3D", x, thin, rows, blocks)
    # what all frames know of each other, to each frame
    return make("Conv2D", _flat(make, x), filters, 3, name=f"all{rows}", **_RELU)


def _edge_part(
    make: SeededLayers, x: Any, rows: int, filters: int, blocks: int, frames: int
) -> Any:
    """Features of finer frames: blocks on half the map, edges from the whole one."""
    edges = make("Conv2D", x, EDGES, 3, name=f"in{rows}", **_RELU)
    x = make("Conv2D", x, filters, 4, 2, name=f"down{rows}", **_RELU)
    x = _blocks(make, "Conv2D", x, filters, rows, blocks)
    x = make("Conv2DTranspose", x, EDGES, 4, 2, name=f"up{rows}", **_RELU)
    return make("Concatenate", [edges, x])


class AdversarialPair:
    """Generator and discriminator up to one resolution, each with its optimizer.

    A step takes this rank's rows of the global batch. The discriminator learns to distinguish true
    clips from generated ones at every resolution; then the generator minimises

        mean |frames - true frames| over resolutions
        + gradient_loss_weight times the same of the differences between neighbouring pixels
        + adversarial times -log D(generated clips)

    Losses are sums over this rank's clips divided by the clips of all ranks, and the optimizers
    add up the gradients of all ranks: p ranks make the step of one process, up to rounding.

    Args:
        both: generator and discriminator.
        stage: resolutions to train.
        comm: the ranks.
        config: a `VideoConfig`: the rate and the weights of the losses.
        epsilon: Adam's. Its first step is the gradient's sign, which rounding can flip; with a
            large epsilon it is the gradient, and takes the same time.

    Source:
        Mathieu et al. 2015 (arXiv:1511.05440), sections 3.2 and 3.3.
    """

    def __init__(
        self, both: tuple[keras.Model, keras.Model], stage: int, comm: Communicator, config: Any,
        epsilon: float = 1e-7,
    ) -> None:  # fmt: skip
        import keras
        import tensorflow as tf

        self.generator, self.discriminator = (until(net, stage) for net in both)
        self.resolutions = resolutions(config.size)[:stage]
        self.gradient_loss_weight = config.gradient_loss_weight
        self.adversarial = config.adversarial
        trained = (self.discriminator, self.generator)
        if not self.adversarial:
            trained = (self.generator,)
        self.optimizers = []
        for net in trained:
            # low momentum, as usual for a GAN: each net's step changes the other's loss
            adam = keras.optimizers.Adam(config.learning_rate, beta_1=0.5, epsilon=epsilon)
            distributed = comm.distribute(adam)
            distributed.build(net.trainable_variables)
            self.optimizers.append((distributed, net.trainable_variables))
        self._step = tf.function(self._one_step, jit_compile=False, autograph=False)

    @property
    def weights(self) -> list[Any]:
        """Weights of both nets, for a checkpoint."""
        return [*self.generator.weights, *self.discriminator.weights]

    @property
    def variables(self) -> list[Any]:
        """State of both optimizers, for a checkpoint."""
        return [variable for each, _ in self.optimizers for variable in each.variables]

    def set_rate(self, rate: float) -> None:
        """Set the learning rate of the following steps."""
        for each, _ in self.optimizers:
            each.learning_rate.assign(rate)

    def step(self, past: Any, guess: Any, future: Any, clips: int) -> tuple[float, float, float]:
        """Make one step of both nets, with `clips` on all ranks; all ranks must call.

        Returns the finest frames' error and the losses of generator and discriminator.
        """
        import tensorflow as tf

        # as a tensor: a Python number would be traced anew for every value
        share = tf.constant(1 / clips, self.generator.outputs[0].dtype)
        found = self._step(*(tf.convert_to_tensor(each) for each in (past, guess, future)), share)
        return tuple(float(each) for each in found)

    def _one_step(self, past: Any, guess: Any, future: Any, share: Any) -> tuple[Any, Any, Any]:
        import tensorflow as tf

        past, guess, future = (centred(each, share.dtype) for each in (past, guess, future))
        seen, true = (coarser(each, self.resolutions) for each in (past, future))
        judged = adversarial = tf.zeros((), share.dtype)
        with tf.GradientTape() as tape:
            generated = flat(self.generator([past, guess], training=True))
            if self.adversarial:
                with tape.stop_recording():
                    judged = self._train_discriminator(seen, true, generated, share)
            differences = [a - b for a, b in zip(generated, true, strict=True)]
            errors = [share * _sum(abs(each)) for each in differences]
            smooth = share * sum(map(_gradient_error, differences))
            loss = sum(errors) + self.gradient_loss_weight * smooth
            if self.adversarial:
                # by the discriminator as it is now
                wrong = (_sum(tf.nn.softplus(-false)) for false in self._logits(seen, generated))
                adversarial = share * sum(wrong)
                loss += self.adversarial * adversarial
        self._update(-1, tape.gradient(loss, self.optimizers[-1][1]))
        return errors[-1], adversarial, judged

    def _train_discriminator(
        self, seen: Sequence[Any], true: Sequence[Any], generated: Sequence[Any], share: Any
    ) -> Any:
        """Train the discriminator on true and generated clips together; return its loss."""
        import tensorflow as tf

        twice = [tf.concat([each, each], axis=0) for each in seen]
        both = [tf.concat(pair, axis=0) for pair in zip(true, generated, strict=True)]
        with tf.GradientTape() as tape:
            loss = tf.zeros((), share.dtype)
            for logits in self._logits(twice, both):
                real, false = tf.split(logits, 2)
                loss += share * (_sum(tf.nn.softplus(-real)) + _sum(tf.nn.softplus(false)))
        self._update(0, tape.gradient(loss, self.optimizers[0][1]))
        return loss

    def _logits(self, seen: Sequence[Any], then: Sequence[Any]) -> list[Any]:
        import tensorflow as tf

        clips = [tf.concat(pair, axis=1) for pair in zip(seen, then, strict=True)]
        return flat(self.discriminator(clips, training=True))

    def _update(self, which: int, gradients: Sequence[Any]) -> None:
        optimizer, variables = self.optimizers[which]
        optimizer.apply(list(gradients), variables)


def centred(frames: Any, dtype: str) -> Any:
    """Scale pixels of 0 to 255 to the nets' range of -0.5 to 0.5."""
    import tensorflow as tf

    return tf.cast(frames, dtype) / 255 - 0.5


def coarser(clips: Any, sizes: Sequence[int]) -> list[Any]:
    """Reduce clips to each resolution by the mean of neighbouring pixels."""
    import tensorflow as tf

    clips = tf.convert_to_tensor(clips)
    count, frames, size = tf.shape(clips)[0], *clips.shape[1:3]
    found = []
    for rows in sizes:
        by = size // rows
        cut = tf.reshape(clips, (count, frames, rows, by, rows, by, 3))
        found.append(clips if by == 1 else tf.reduce_mean(cut, axis=(3, 5)))
    return found


def flat(outputs: Any) -> list[Any]:
    """Return a net's outputs as a list; Keras returns a single one alone."""
    return list(outputs) if isinstance(outputs, list | tuple) else [outputs]


def _sum(values: Any) -> Any:
    """Sum the means of all clips."""
    import tensorflow as tf

    return tf.reduce_sum(tf.reduce_mean(values, axis=tuple(range(1, len(values.shape)))))


def _gradient_error(error: Any) -> Any:
    """Sum the error of the differences between neighbouring pixels."""
    down, across = error[:, :, 1:] - error[:, :, :-1], error[..., 1:, :] - error[..., :-1, :]
    return _sum(abs(down)) + _sum(abs(across))
