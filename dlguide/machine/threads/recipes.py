"""The words of the recipes of 2019: what each did, whether it still does, and what does now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dlguide.errors import require_known
from dlguide.machine.threads.reading import whole

ALIVE, ELSEWHERE, DEAD = "alive", "not here", "dead"
_NOT_TF = "TensorFlow 2.21 computes in a thread pool of its own and does not ask OpenMP"
_INTRA = "TF_NUM_INTRAOP_THREADS, or `tf.config.threading`; a `threads.plan` sets it"
_INTER = "TF_NUM_INTEROP_THREADS, or `tf.config.threading`; a `threads.plan` sets it"
_MASK = "the affinity mask of the process: `threads.plan`, `taskset`, `mpiexec -bind-to core`"
_ONECCL = "MLSL has ended, oneCCL is its heir"
_COMM = "HOROVOD_THREAD_AFFINITY (one CPU per rank of the node), oneCCL's CCL_WORKER_AFFINITY"


@dataclass(frozen=True)
class Recipe:
    """A variable or option of the recipes.

    Args:
        did: what it asked for.
        state: "alive", "not here" (it works, but TensorFlow does not heed it) or "dead".
        why: why, where it is not alive; what to know about it, where it is.
        today: what does the same job now; "" when the word itself does.
        form: "count", "time", "switch" or "text": what its value must look like.
    """

    did: str
    state: str
    why: str
    today: str
    form: str = "text"


RECIPES: Mapping[str, Recipe] = {
    "KMP_AFFINITY": Recipe(
        "binds the threads of Intel's OpenMP to CPUs", ELSEWHERE, _NOT_TF, _MASK
    ),
    "GOMP_CPU_AFFINITY": Recipe(
        "binds the threads of GNU's OpenMP to the listed CPUs", ELSEWHERE, _NOT_TF, _MASK
    ),
    "OMP_PLACES": Recipe("names the places threads are bound to", ELSEWHERE, _NOT_TF, _MASK),
    "OMP_PROC_BIND": Recipe("says how threads go to the places", ELSEWHERE, _NOT_TF, _MASK),
    "OMP_NUM_THREADS": Recipe(
        "number of OpenMP threads of a process", ELSEWHERE,
        f"{_NOT_TF}, nor does daal4py; NumPy's BLAS does", _INTRA, "count",
    ),
    "KMP_BLOCKTIME": Recipe(
        "how long a thread without work keeps its core busy before it sleeps", ELSEWHERE,
        _NOT_TF, "nothing: TensorFlow's threads decide by themselves", "time",
    ),
    "KMP_SETTINGS": Recipe(
        "prints the settings of Intel's OpenMP at the start", ELSEWHERE, _NOT_TF,
        "`repr(cluster)`: masks and threads as the ranks have them", "switch",
    ),
    "MLSL_NUM_SERVERS": Recipe(
        "cores of each process that only communicate", DEAD, _ONECCL,
        "`threads.plan(..., comm_cores=...)`; oneCCL's CCL_WORKER_COUNT", "count",
    ),
    "MLSL_SERVER_AFFINITY": Recipe(
        "the CPUs of these cores, process after process", DEAD, _ONECCL, _COMM
    ),
    "MKLDNN_VERBOSE": Recipe(
        "prints every operation of MKL-DNN", DEAD, "the library is now oneDNN",
        "ONEDNN_VERBOSE=1", "count",
    ),
    "ONEDNN_VERBOSE": Recipe("prints every operation of oneDNN", ALIVE, "", "", "text"),
    "TF_ENABLE_ONEDNN_OPTS": Recipe(
        "switches oneDNN on (1) or off (0)", ALIVE, "on by default on x86", "", "switch"
    ),
    "TF_NUM_INTRAOP_THREADS": Recipe(
        "threads that share one operation", ALIVE, "read when TensorFlow starts its threads",
        "", "count",
    ),
    "TF_NUM_INTEROP_THREADS": Recipe(
        "operations that run side by side", ALIVE, "read when TensorFlow starts its threads",
        "", "count",
    ),
    "num_intra_threads": Recipe(
        "tf_cnn_benchmarks: threads that share one operation", DEAD,
        "the program is no longer maintained", _INTRA, "count",
    ),
    "num_inter_threads": Recipe(
        "tf_cnn_benchmarks: operations that run side by side", DEAD,
        "the program is no longer maintained", _INTER, "count",
    ),
    "intra_op_parallelism_threads": Recipe(
        "tf.ConfigProto: threads that share one operation", DEAD, "TensorFlow 2 has no sessions",
        _INTRA, "count",
    ),
    "inter_op_parallelism_threads": Recipe(
        "tf.ConfigProto: operations that run side by side", DEAD,
        "TensorFlow 2 has no sessions", _INTER, "count",
    ),
    "kmp_blocktime": Recipe(
        "tf_cnn_benchmarks: sets KMP_BLOCKTIME", DEAD, "the program is no longer maintained",
        "nothing: TensorFlow's threads decide by themselves", "time",
    ),
    "HOROVOD_FUSION_THRESHOLD": Recipe(
        "bytes of gradients that Horovod sends together", ALIVE,
        "134217728 is the default of Horovod 0.28; 0 switches fusion off", "", "count",
    ),
    "HOROVOD_CYCLE_TIME": Recipe(
        "milliseconds between Horovod's looks for new gradients", ALIVE,
        "its default is 1; a Cluster sets 0.1", "",
    ),
    "HOROVOD_THREAD_AFFINITY": Recipe(
        "the CPU of Horovod's communicating thread, one for each rank of the node", ALIVE,
        "the job of MLSL_SERVER_AFFINITY", "",
    ),
    "HOROVOD_GPU_ALLREDUCE": Recipe(
        "lets Horovod reduce on GPUs with NCCL", DEAD,
        "an option for building Horovod; at run time it never did anything",
        "HOROVOD_GPU_OPERATIONS=NCCL when Horovod is built",
    ),
    "HOROVOD_GPU_OPERATIONS": Recipe(
        "lets Horovod work on GPUs with NCCL", ALIVE,
        "read when Horovod is built, not when it runs", "",
    ),
    "I_MPI_DEBUG": Recipe(
        "5 prints the CPUs of every rank (Intel MPI)", ALIVE,
        "Open MPI: `--report-bindings`; a Cluster shows them in its repr", "", "text",
    ),
    "I_MPI_PIN_DOMAIN": Recipe("how Intel MPI divides the CPUs among ranks", ALIVE, "", ""),
    "I_MPI_FABRICS": Recipe(
        "the network Intel MPI uses", ALIVE, "`tmi` is gone since Intel MPI 2019: `shm:ofi`", ""
    ),
    "I_MPI_TMI_PROVIDER": Recipe(
        "the library under the fabric tmi", DEAD, "Intel MPI 2019 removed tmi",
        "FI_PROVIDER=psm2 (Omni-Path)",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Line:
    """One word of a recipe and what is known about it."""

    name: str
    value: str
    recipe: Recipe

    def __str__(self) -> str:
        recipe = self.recipe
        head = f"{self.name}={self.value}" if self.value else self.name
        why = f" ({recipe.why})" if recipe.why else ""
        lines = [head, f"    asked for:  {recipe.did}", f"    today:      {recipe.state}{why}"]
        return "\n".join([*lines, *([f"    instead:    {recipe.today}"] if recipe.today else [])])


def line(name: str, value: Any) -> Line:
    """Look a word up and check that its value has the right form.

    >>> line("MKLDNN_VERBOSE", 1).recipe.today
    'ONEDNN_VERBOSE=1'
    """
    recipe = RECIPES[require_known(name, RECIPES, "name")]
    if value is None or value == "":
        return Line(name, "", recipe)
    word = whole(value, name)
    if recipe.form == "count":
        word.count(name, "its value")
    elif recipe.form == "time":
        plain = word.said.removesuffix("ms").removesuffix("s")
        right = plain.isdigit() or word.said.lower() in ("infinite", "infinity")
        word.require(right, name, "have milliseconds or `infinite` here")
    elif recipe.form == "switch":
        known = word.said.lower() in ("0", "1", "true", "false", "yes", "no", "on", "off")
        word.require(known, name, "be 0 or 1, true or false")
    return Line(name, word.said, recipe)
