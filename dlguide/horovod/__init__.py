"""Horovod's Keras interface for Keras 3: `import dlguide.horovod as hvd`.

A drop-in for `horovod.tensorflow.keras`, whose optimizer wrapper reduces nothing under Keras 3:
the same names, arguments and meaning, on Horovod's own engine.

    import dlguide.horovod as hvd
    hvd.init()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1 * hvd.size()))
    model.compile(optimizer, loss=..., jit_compile=False)
    model.fit(shard, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
"""

from dlguide.errors import missing_component

try:
    from dlguide.horovod import callbacks, elastic
except ModuleNotFoundError as error:
    raise (missing_component(error) or error) from None
from dlguide.horovod.guard import RanksDifferError, check_weights
from dlguide.horovod.native import (
    Adasum,
    Average,
    Compression,
    Max,
    Min,
    ProcessSet,
    Product,
    Sum,
    global_process_set,
    missing,
    native,
)
from dlguide.horovod.normalization import SynchronizedNormalization as SyncBatchNormalization
from dlguide.horovod.ops import (
    allgather,
    allreduce,
    alltoall,
    broadcast,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    reducescatter,
)
from dlguide.horovod.optimizer import DistributedOptimizer
from dlguide.horovod.runtime import (
    init,
    init_for_recording,
    record_timeline,
    restart,
    shutdown,
    use_gloo,
)
from dlguide.horovod.state import broadcast_global_variables, broadcast_variables, load_model
from dlguide.horovod.tape import DistributedGradientTape

# Names that are Horovod's own, unchanged.
_NATIVE = (
    "is_initialized", "start_timeline", "stop_timeline",
    "rank", "size", "local_rank", "local_size", "cross_rank", "cross_size", "is_homogeneous",
    "mpi_threads_supported", "mpi_enabled", "mpi_built", "gloo_enabled", "gloo_built",
    "nccl_built", "ddl_built", "ccl_built", "cuda_built", "rocm_built",
    "add_process_set", "remove_process_set",
    "join", "allgather_object", "broadcast_object",
    "rank_op", "size_op", "local_rank_op", "local_size_op", "process_set_included_op",
)  # fmt: skip
globals().update({name: getattr(native, name) for name in _NATIVE})

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "RanksDifferError",
    "Sum",
    "SyncBatchNormalization",
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_variables",
    "callbacks",
    "check_weights",
    "elastic",
    "global_process_set",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "init",
    "init_for_recording",
    "load_model",
    "record_timeline",
    "reducescatter",
    "restart",
    "shutdown",
    "use_gloo",
    *_NATIVE,
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> object:
    raise missing(__name__, name)
