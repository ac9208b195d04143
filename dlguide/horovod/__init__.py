"""Horovod's Keras interface for Keras 3: `import dlguide.horovod as hvd`."""

from dlguide.horovod.collectives import allgather, allreduce, alltoall, broadcast, reducescatter
from dlguide.horovod.grouped import grouped_allgather, grouped_allreduce
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
from dlguide.horovod.optimizer import DistributedOptimizer
from dlguide.horovod.variables import broadcast_global_variables, broadcast_variables

init = native.init
shutdown = native.shutdown
is_initialized = native.is_initialized
rank = native.rank
size = native.size
local_rank = native.local_rank
local_size = native.local_size
cross_rank = native.cross_rank
cross_size = native.cross_size
