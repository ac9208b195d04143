"""The two nets' game in one step: the discriminator learns, then the generator, on all ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dlcourse.usecases.video import nets
from dlguide.collectives.communicator import Communicator

if TYPE_CHECKING:
    import keras

# Momentum of Adam is low, as for every GAN: what was a good step is none after the other's move.
BETA = 0.5


class Pair:
    """Generator and discriminator up to one resolution, with optimizers of their own.

    A step takes this rank's rows of the global batch. The discriminator learns to tell true clips
    from made ones at every resolution; then the generator learns from three things:

        mean |frames - true frames| over resolutions
        + edges times the same of the differences between neighbouring pixels
        + adversarial times -log D(made clips)

    Losses are sums over this rank's clips divided by the clips of all ranks, and the optimizers
    add up the gradients of all ranks: p ranks make the step of one process, up to rounding. A
    step moves the bytes of both nets' gradients.

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
        edges: float = 1.0,
        adversarial: float = 0.01,
        optimizer: Callable[[float], keras.Optimizer] | None = None,
    ) -> None:
        import keras
        import tensorflow as tf

        self.generator = nets.until(generator, stage)
        self.discriminator = nets.until(discriminator, stage)
        self.resolutions = nets.resolutions(generator.input_shape[0][2])[:stage]
        self.edges, self.adversarial = edges, adversarial
        make = optimizer or (lambda rate: keras.optimizers.Adam(rate, beta_1=BETA))
        nets_of = (self.discriminator, self.generator) if adversarial else (self.generator,)
        self.rules = []
        for net in nets_of:
            rule = comm.distribute(make(rate))
            rule.build(net.trainable_variables)
            self.rules.append((rule, net.trainable_variables))
        self._step = tf.function(self._one_step, jit_compile=False, autograph=False)

    @property
    def weights(self) -> list[Any]:
        """Weights of both nets, for a checkpoint."""
        return [*self.generator.weights, *self.discriminator.weights]

    @property
    def variables(self) -> list[Any]:
        """What both optimizers remember, for a checkpoint."""
        return [variable for rule, _ in self.rules for variable in rule.variables]

    def set_rate(self, rate: float) -> None:
        """Set the rates of the steps that follow."""
        for rule, _ in self.rules:
            rule.learning_rate.assign(rate)

    def step(self, past: Any, guess: Any, future: Any, clips: int) -> tuple[float, float, float]:
        """Make one step of both nets; all ranks must."""
        import tensorflow as tf

        # as an array: a Python number would be traced anew for every value
        share = tf.constant(1 / clips, self.generator.outputs[0].dtype)
        found = self._step(*(tf.convert_to_tensor(each) for each in (past, guess, future)), share)
        return tuple(float(each) for each in found)

    def _one_step(self, past: Any, guess: Any, future: Any, share: Any) -> tuple[Any, Any, Any]:
        import tensorflow as tf

        past, guess, future = (centred(each, share.dtype) for each in (past, guess, future))
        seen, true = (coarser(each, self.resolutions) for each in (past, future))
        judged = fooled = tf.zeros((), share.dtype)
        with tf.GradientTape() as tape:
            made = flat(self.generator([past, guess], training=True))
            if self.adversarial:
                with tape.stop_recording():
                    judged = self._learn_to_judge(seen, true, made, share)
            differences = [a - b for a, b in zip(made, true, strict=True)]
            errors = [share * _sum(abs(each)) for each in differences]
            loss = sum(errors) + self.edges * share * sum(map(_edges, differences))
            if self.adversarial:
                # by the discriminator as it is now
                wrong = (_sum(tf.nn.softplus(-false)) for false in self._judge(seen, made))
                fooled = share * sum(wrong)
                loss += self.adversarial * fooled
        self._update(-1, tape.gradient(loss, self.rules[-1][1]))
        return errors[-1], fooled, judged

    def _learn_to_judge(
        self, seen: Sequence[Any], true: Sequence[Any], made: Sequence[Any], share: Any
    ) -> Any:
        """Let the discriminator learn from true and made clips side by side."""
        import tensorflow as tf

        twice = [tf.concat([each, each], axis=0) for each in seen]
        both = [tf.concat(pair, axis=0) for pair in zip(true, made, strict=True)]
        with tf.GradientTape() as tape:
            loss = tf.zeros((), share.dtype)
            for logits in self._judge(twice, both):
                real, false = tf.split(logits, 2)
                loss += share * (_sum(tf.nn.softplus(-real)) + _sum(tf.nn.softplus(false)))
        self._update(0, tape.gradient(loss, self.rules[0][1]))
        return loss

    def _judge(self, seen: Sequence[Any], then: Sequence[Any]) -> list[Any]:
        import tensorflow as tf

        clips = [tf.concat(pair, axis=1) for pair in zip(seen, then, strict=True)]
        return flat(self.discriminator(clips, training=True))

    def _update(self, which: int, gradients: Sequence[Any]) -> None:
        rule, variables = self.rules[which]
        rule.apply(list(gradients), variables)


def centred(frames: Any, dtype: str) -> Any:
    """Turn pixels of 0 to 255 into numbers from -0.5 to 0.5, as the nets take them."""
    import tensorflow as tf

    return tf.cast(frames, dtype) / 255 - 0.5


def coarser(clips: Any, resolutions: Sequence[int]) -> list[Any]:
    """Bring clips to each resolution by the mean of neighbouring pixels."""
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
    """List a net's outputs; Keras gives one alone where there is only one."""
    return list(outputs) if isinstance(outputs, list | tuple) else [outputs]


def _sum(values: Any) -> Any:
    """Sum over clips the mean over each of them."""
    import tensorflow as tf

    return tf.reduce_sum(tf.reduce_mean(values, axis=tuple(range(1, len(values.shape)))))


def _edges(error: Any) -> Any:
    """Compare neighbouring pixels: the difference of a difference is that of the errors."""
    down, across = error[:, :, 1:] - error[:, :, :-1], error[..., 1:, :] - error[..., :-1, :]
    return _sum(abs(down)) + _sum(abs(across))
