"""Horovod's Keras interface for Keras 3: `import dlguide.horovod as hvd`.

A drop-in for `horovod.tensorflow.keras`, whose optimizer wrapper reduces nothing under Keras 3:
the same names, arguments and meaning, on Horovod's own engine.

    import dlguide.horovod as hvd
    hvd.init()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1 * hvd.size()))
    model.compile(optimizer, loss=..., jit_compile=False)
    model.fit(shard, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
"""

from typing import NoReturn

from dlguide.horovod import callbacks
from dlguide.horovod.collectives import allgather, allreduce, alltoall, broadcast, reducescatter
from dlguide.horovod.grouped import grouped_allgather, grouped_allreduce, grouped_reducescatter
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
    native,
)
from dlguide.horovod.optimizer import DistributedOptimizer, PartialDistributedOptimizer
from dlguide.horovod.recording import init_for_recording, record_timeline
from dlguide.horovod.runtime import init, restart, shutdown
from dlguide.horovod.saving import load_model
from dlguide.horovod.tape import DistributedGradientTape, PartialDistributedGradientTape
from dlguide.horovod.variables import broadcast_global_variables, broadcast_variables

# What Horovod has for Keras 2, and what to use here.
_ABSENT = {
    "SyncBatchNormalization": "Ranks form the statistics of whole batches in `dlguide run "
    "--transparent`; elsewhere use `keras.layers.GroupNormalization`, which needs no other rank.",
    "elastic": "Use `dlguide.training.fit(checkpoint=...)`: after a failure the same call goes on "
    "from the last checkpoint, from an epoch's end also on another number of ranks.",
}


def __getattr__(name: str) -> NoReturn:
    then = f" {_ABSENT[name]}" if name in _ABSENT else ""
    raise AttributeError(f"`dlguide.horovod` has no `{name}`.{then}", name=name)


is_initialized = native.is_initialized
start_timeline = native.start_timeline
stop_timeline = native.stop_timeline

rank = native.rank
size = native.size
local_rank = native.local_rank
local_size = native.local_size
cross_rank = native.cross_rank
cross_size = native.cross_size
is_homogeneous = native.is_homogeneous

mpi_threads_supported = native.mpi_threads_supported
mpi_enabled = native.mpi_enabled
mpi_built = native.mpi_built
gloo_enabled = native.gloo_enabled
gloo_built = native.gloo_built
nccl_built = native.nccl_built
ddl_built = native.ddl_built
ccl_built = native.ccl_built
cuda_built = native.cuda_built
rocm_built = native.rocm_built

add_process_set = native.add_process_set
remove_process_set = native.remove_process_set

join = native.join
allgather_object = native.allgather_object
broadcast_object = native.broadcast_object
rank_op = native.rank_op
size_op = native.size_op
local_rank_op = native.local_rank_op
local_size_op = native.local_size_op
process_set_included_op = native.process_set_included_op

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "Max",
    "Min",
    "PartialDistributedGradientTape",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Product",
    "RanksDifferError",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "ccl_built",
    "check_weights",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "init",
    "init_for_recording",
    "is_homogeneous",
    "is_initialized",
    "join",
    "load_model",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_included_op",
    "rank",
    "rank_op",
    "record_timeline",
    "reducescatter",
    "remove_process_set",
    "restart",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stop_timeline",
]
