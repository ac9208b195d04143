"""One adversarial training step on all ranks: the discriminator learns, then the generator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dlcourse.usecases.video import nets
from dlguide.collectives.communicator import Communicator

if TYPE_CHECKING:
    import keras

# Adam's momentum is low, as usual for a GAN: each net's step changes the other's loss.
BETA = 0.5


class AdversarialPair:
    """Generator and discriminator up to one resolution, each with its optimizer.

    A step takes this rank's rows of the global batch. The discriminator learns to distinguish true
    clips from generated ones at every resolution; then the generator minimises

        mean |frames - true frames| over resolutions
        + gradient_loss_weight times the same of the differences between neighbouring pixels
        + adversarial times -log D(generated clips)

    Losses are sums over this rank's clips divided by the clips of all ranks, and the optimizers
    add up the gradients of all ranks: p ranks make the step of one process, up to rounding.

    Source:
        Mathieu et al. 2015 (arXiv:1511.05440), sections 3.2 and 3.3.
    """

    def __init__(
        self,
        generator: keras.Model,
        discriminator: keras.Model,
        stage: int,
        comm: Communicator,
        rate: float = 2e-3,
        gradient_loss_weight: float = 1.0,
        adversarial: float = 0.01,
        optimizer: Callable[[float], keras.Optimizer] | None = None,
    ) -> None:
        import keras
        import tensorflow as tf

        self.generator = nets.until(generator, stage)
        self.discriminator = nets.until(discriminator, stage)
        self.resolutions = nets.resolutions(generator.input_shape[0][2])[:stage]
        self.gradient_loss_weight, self.adversarial = gradient_loss_weight, adversarial
        make = optimizer or (lambda rate: keras.optimizers.Adam(rate, beta_1=BETA))
        trained = (self.discriminator, self.generator) if adversarial else (self.generator,)
        self.optimizers = []
        for net in trained:
            optimizer_of = comm.distribute(make(rate))
            optimizer_of.build(net.trainable_variables)
            self.optimizers.append((optimizer_of, net.trainable_variables))
        # one trace for any number of clips
        past, after = generator.input_shape[0], generator.outputs[0].shape[1]
        future = (None, after, *past[2:])
        shapes = [tf.TensorSpec(shape, tf.uint8) for shape in (past, future, future)]
        self._step = tf.function(
            self._one_step, jit_compile=False, autograph=False,
            input_signature=[*shapes, tf.TensorSpec((), generator.outputs[0].dtype)],
        )  # fmt: skip

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
        """Make one step of both nets, with `clips` on all ranks; all ranks must call."""
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


def coarser(clips: Any, resolutions: Sequence[int]) -> list[Any]:
    """Reduce clips to each resolution by the mean of neighbouring pixels."""
    import tensorflow as tf

    clips = tf.convert_to_tensor(clips)
    count, frames, size = tf.shape(clips)[0], *clips.shape[1:3]
    found = []
    for rows in resolutions:
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
