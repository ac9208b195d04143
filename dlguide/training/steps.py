"""One step of training, and counting right answers: the two compiled functions of the loop."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from dlguide.collectives.communicator import Communicator
from dlguide.data.input_pipeline import Pipeline
from dlguide.errors import require, require_count
from dlguide.training.divergence import spoiled

if TYPE_CHECKING:
    import keras

    from dlguide.data.datasets import Dataset

# The test set is cut into blocks of this size whatever the ranks are: the same images meet in
# one matrix product everywhere, so that the counts cannot differ by a rounding.
EVALUATION_BLOCK = 200


class Gradients:
    """The loss of some samples and its gradients, to be computed inside a compiled function.

    The loss of a step is the mean over the global batch. Worker w holds some of its samples and
    computes their part of the mean,

        loss_w = sum over its samples of crossentropy * scale,  scale = 1 / global batch,

    so that the gradients of all workers have only to be summed. The result is the serial gradient
    also when workers hold unequal numbers of samples, where a mean of the workers' means is not
    it. A worker without samples takes any one with scale 0.

    Losses that layers add (weight decay) are divided by the workers, as each has them whole.
    Loss and count are of single precision at least, whatever the logits are.
    Where the loss is not finite, the sum of the gradients is not either (`divergence.spoiled`).
    """

    def __init__(self, model: keras.Model, optimizer: keras.Optimizer, workers: int) -> None:
        import tensorflow as tf

        self.model, self.optimizer, self.workers = model, optimizer, workers
        # Half precision counts to 2048 only, and makes 0 of the share of a large global batch.
        self.dtype = "float64" if model.outputs[0].dtype == "float64" else "float32"
        self.signature = [*_samples(model), tf.TensorSpec([], self.dtype, name="scale")]

    def __call__(self, images: Any, labels: Any, scale: Any) -> tuple[Any, list[Any]]:
        """Compute them; scale is 1 / global batch."""
        import tensorflow as tf

        with tf.GradientTape() as tape:
            logits = tf.cast(self.model(images, training=True), self.dtype)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_sum(losses) * scale
            whole = loss
            if self.model.losses:
                whole += tf.cast(tf.add_n(self.model.losses), self.dtype) / self.workers
            scaled = self.optimizer.scale_loss(whole)
        told = tf.argmax(logits, axis=-1, output_type=labels.dtype) == labels
        right = tf.cast(tf.math.count_nonzero(told), self.dtype)
        right *= tf.cast(scale > 0, self.dtype)  # the sample of a worker without any counts not
        variables = self.model.trainable_variables
        found = spoiled(tape.gradient(scaled, variables), variables, whole)
        return tf.stack([loss, right]), found


def train_step(
    model: keras.Model, optimizer: keras.Optimizer, ranks: int = 1, count_right: bool = False
) -> Callable[[Any, Any, float], Any]:
    """Compile one step of synchronous training for this rank."""
    import tensorflow as tf

    gradients = Gradients(model, optimizer, ranks)

    @traced
    @tf.function(input_signature=gradients.signature, autograph=False)
    def step(images: Any, labels: Any, scale: Any) -> Any:
        told, found = gradients(images, labels, scale)
        optimizer.apply(found, model.trainable_variables)
        return told if count_right else told[0]

    return step


def adds_losses_of_inputs(model: keras.Model) -> bool:
    """Tell whether layers add losses of their batch, such as an `activity_regularizer`."""
    import tensorflow as tf

    added = []

    @tf.function(input_signature=_samples(model)[:1], autograph=False)
    def look(images: Any) -> None:
        model(images, training=True)
        added.append(len(model.losses))

    look.get_concrete_function()
    return added[0] > sum(v.regularizer is not None for v in model.trainable_weights)


def evaluator(
    model: keras.Model, data: Dataset | Pipeline, comm: Communicator, top: int = 1
) -> Callable[[], float]:
    """Compile the evaluation of a net on the whole test set, divided among the ranks.

    The test set is cut into blocks, each rank counts the right answers in its share of them,
    and the counts are summed: the result is that of one process exactly, also when the blocks
    do not divide evenly, where a mean of the ranks' accuracies is not it. In the blocks of a
    pipeline other images may meet than on one rank: its counts can differ by a rounding.
    """
    import tensorflow as tf

    require_count(top, "top")

    @traced
    @tf.function(input_signature=_samples(model), autograph=False)
    def right(images: Any, labels: Any) -> Any:
        logits = model(images, training=False)
        if top > 1:
            return tf.math.count_nonzero(tf.math.in_top_k(labels, tf.cast(logits, "float32"), top))
        answers = tf.argmax(logits, axis=-1, output_type=labels.dtype)
        return tf.math.count_nonzero(answers == labels)

    def accuracy_of_pipeline() -> float:
        with comm.agree_or_raise(), data.epoch() as batches:  # one rank's data may be damaged
            count = sum(int(right(*batch)) for batch in batches if len(batch[1]))
        return comm.allreduce_sum([count])[0] / data.samples

    if isinstance(data, Pipeline):
        must = f"hold a sample for each of the {comm.size} ranks"
        require(data.samples >= comm.size, "test", must, f"{data.samples} samples")
        block = min(EVALUATION_BLOCK, data.samples // comm.size)
        mine = {"rank": comm.rank, "ranks": comm.size}
        data = data.replace(batch=block, shuffle=False, **mine)
        return accuracy_of_pipeline
    images, labels = data.test_images, data.test_labels
    starts = range(0, len(labels), EVALUATION_BLOCK)[comm.rank :: comm.size]

    def accuracy() -> float:
        blocks = (slice(start, start + EVALUATION_BLOCK) for start in starts)
        count = sum(int(right(images[block], labels[block])) for block in blocks)
        return comm.allreduce_sum([count])[0] / len(labels)

    return accuracy


def traced(function: Any) -> Callable[..., Any]:
    """Trace a compiled function of one signature at its first call.

    TensorFlow counts the tracings of a line of source and would warn at the fifth training in a
    process, where nothing is wrong.
    """
    concrete = cache(function.get_concrete_function)
    return lambda *arguments: concrete()(*arguments)


def _samples(model: keras.Model) -> list[Any]:
    import tensorflow as tf

    return [
        tf.TensorSpec([None, *model.inputs[0].shape[1:]], tf.float32, name="images"),
        tf.TensorSpec([None], tf.int32, name="labels"),
    ]
