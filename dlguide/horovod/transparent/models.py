"""What a compiled model must be so that its training can be shared, seen before it starts."""

from __future__ import annotations

from typing import Any

import keras
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

from dlguide.horovod.transparent import losses as judged
from dlguide.horovod.transparent.session import Session

NO_MEANS = ("sum", "none", None, "mean_with_sample_weight")


def check_model(session: Session, model: Any) -> None:
    """Refuse a model whose steps cannot be shared, and turn XLA off."""
    name = type(model).__name__
    for method in ("make_train_function", "make_test_function"):
        if getattr(type(model), method) is not getattr(TensorFlowTrainer, method):
            session.refuse(f"`{name}` makes its own training loop in `{method}`")
    _state_limits(session, model)
    losses = keras.tree.flatten(getattr(model, "_user_loss", None) or getattr(model, "loss", None))
    for loss in losses:
        if isinstance(loss, keras.losses.Loss) and loss.reduction in NO_MEANS:
            session.refuse(
                f"its loss {loss.name} is not a mean over the batch (reduction={loss.reduction!r})"
            )
    sizes = {each.shape[0] for each in getattr(model, "inputs", None) or [] if each.shape}
    if sizes - {None}:
        session.refuse(f"`{name}` is built for batches of {max(sizes - {None})} samples only")
    if model.jit_compile:
        model.jit_compile = False
        model.train_function = model.test_function = None
        session.report.change("compile", 0, "XLA is off (jit_compile=False)")
    layers = [each for each in model._flatten_layers() if getattr(each, "mask_zero", False)]
    if layers:
        session.report.differs(
            f"Masks ({', '.join(each.name for each in layers)}): a loss over steps that are not "
            "masked is averaged on each rank first, then over the ranks by their samples."
        )


def _state_limits(session: Session, model: Any) -> None:
    """Say in the report what of a model is not as in one process, or cannot be checked."""
    report, kind = session.report, type(model)
    for method in ("train_step", "compute_loss"):
        if getattr(kind, method) is not getattr(keras.Model, method):
            report.assume(f"the loss that `{kind.__name__}.{method}` forms {judged.MEAN}")
    # Before a model is built `metrics` holds none of `compile`; those of its layers it does.
    given = getattr(model, "_compile_metrics", None)
    given = [getattr(given, "_user_metrics", None), getattr(given, "_user_weighted_metrics", None)]
    metrics = [*model.metrics, *keras.tree.flatten(given)]
    own = [each for each in metrics if isinstance(each, keras.metrics.Metric)]
    own = [each.name for each in own if not type(each).__module__.startswith("keras.")]
    if own:
        report.differs(
            f"Metrics of the script's own classes ({', '.join(dict.fromkeys(own))}): their "
            'variables are summed over the ranks, or as their `aggregation=` says ("mean").'
        )
