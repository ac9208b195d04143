"""Keras optimizers that first combine the gradients of all ranks."""

from __future__ import annotations

from dlguide.horovod.native import Average, Compression, global_process_set
from dlguide.horovod.reduction import reduction


def DistributedOptimizer(
    optimizer,
    name=None,
    device_dense="",
    device_sparse="",
    compression=Compression.none,
    sparse_as_dense=False,
    gradient_predivide_factor=1.0,
    op=Average,
    backward_passes_per_step=1,
    average_aggregated_gradients=False,
    num_groups=0,
    groups=None,
    process_set=global_process_set,
    scale_local_gradients=True,
):
    """Make a Keras optimizer average the gradients of all ranks before it applies them."""
    base = type(optimizer)
    settings = reduction(
        f"Distributed{base.__name__}",
        name=name,
        groups=groups,
        num_groups=num_groups,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
        device_dense=device_dense,
        device_sparse=device_sparse,
    )

    def apply(self, grads, trainable_variables=None):
        variables = (
            self._trainable_variables if trainable_variables is None else trainable_variables
        )
        return base.apply(self, settings.reduce(grads, list(variables)), trainable_variables)

    optimizer.__class__ = type(
        base.__name__, (base,), {"apply": apply, "__module__": base.__module__}
    )
    return optimizer
