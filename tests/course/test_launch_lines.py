"""Launch lines of the sources are understood word by word, and written for today's launchers.

Tests dlcourse.launch_lines and dlguide.cluster.launch_command.
"""

import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from dlcourse import launch_lines
from dlguide.cluster import launch_command

IMAGENET = """MLSL_NUM_SERVERS=2 MLSL_SERVER_AFFINITY="39,38,43,42" OMP_NUM_THREADS=22
KMP_AFFINITY="granularity=fine,compact,1,0"
mpiexec.hydra -PSM2 -l -n 896 -ppn 2 -f hostfile -genv OMP_NUM_THREADS 22
-genv KMP_AFFINITY "granularity=fine,compact,1,0" ./build/tools/caffe train --solver=s.prototxt"""
THESIS = r"""mpirun -np 4 -bind-to none -map-by slot \
  -x NCCL_DEBUG=INFO -x LD_LIBRARY_PATH -x PATH \
  -mca pml ob1 -mca btl ^openib \
  -oversubscribe \
  python3.6 tf_cnn_benchmarks.py --model resnet50"""
GUIDE_64 = (
    "OMP_NUM_THREADS=20 HOROVOD_FUSION_THRESHOLD=134217728 export I_MPI_FABRICS=tmi "
    "export I_MPI_TMI_PROVIDER=psm2 mpirun -np 512 --ppn 2 python resnet_main.py --mkl=True"
)
LINES = [
    IMAGENET,
    THESIS,
    GUIDE_64,
    "mpirun --allow-run-as-root -np $NP -cpus-per-proc $PER_PROC -map-by socket -H 192.168.10.110 "
    "--report-bindings --oversubscribe -x LD_LIBRARY_PATH python ./tf_cnn_benchmarks.py",
    'mpirun -bind-to none -np 48 --tag-output caffe train --solver "a b.prototxt"',
]


def word(launch, beginning):
    (found,) = [word for word in launch.words if word.text.startswith(beginning)]
    return found


def test_the_imagenet_line_is_448_nodes_and_its_dead_words_are_named():
    launch = launch_lines.explain(IMAGENET)
    assert launch.launcher == "mpiexec of MPICH and Intel MPI"
    job = launch.job
    assert (job.ranks, job.per_node, job.cpus, job.hostfile) == ("896", "2", "22", "hostfile")
    assert job.label
    assert word(launch, "-PSM2").state == "dead"
    assert word(launch, "MLSL_NUM_SERVERS").state == "dead"
    assert "896 ranks, 2 on a node, need 448 nodes." in launch.findings
    assert set(job.variables) == {"OMP_NUM_THREADS", "KMP_AFFINITY"}
    assert job.program == ("./build/tools/caffe", "train", "--solver=s.prototxt")


def test_c12_the_copied_flags_are_called_dated_and_left_out_of_todays_lines():
    launch = launch_lines.explain(THESIS)
    states = {word.text: word.state for word in launch.words if word.state != "works"}
    dated = dict.fromkeys(("-bind-to none", "-mca pml ob1", "-mca btl ^openib"), "dated")
    assert states == {**dated, "-oversubscribe": "harmful"}
    for command in launch_lines.all_lines(launch.job).values():
        assert not any(word in command for word in ("openib", "ob1", "oversub", "bind-to none"))


def test_c25_the_line_with_export_runs_nothing_and_needs_256_nodes():
    launch = launch_lines.explain(GUIDE_64)
    assert any("As printed this runs nothing" in finding for finding in launch.findings)
    assert "512 ranks, 2 on a node, need 256 nodes." in launch.findings
    assert word(launch, "I_MPI_FABRICS").state == "dead"


@pytest.mark.parametrize("line", LINES)
def test_todays_lines_say_the_same_job(line):
    job = launch_lines.explain(line).job
    for name, command in launch_lines.all_lines(job).items():
        if name == "Slurm":  # srun is written, not read
            continue
        again = launch_lines.explain(command)
        same = ("ranks", "program", "label")
        assert [getattr(again.job, part) for part in same] == [getattr(job, part) for part in same]
        assert job.variables.keys() <= again.job.variables.keys()
        assert not any(word.state == "harmful" for word in again.words)


def test_mpichs_line_really_starts_the_ranks():
    folder = Path(sysconfig.get_path("scripts"))
    program = f"{sys.executable} -c 'import os; print(os.environ[\"DL_X\"])'"
    launch = launch_lines.explain(f"mpirun -bind-to none -np 2 -x DL_X=a,b --tag-output {program}")
    words = shlex.split(launch_command.mpich(launch.job))
    ran = subprocess.run(
        [str(folder / words[0]), *words[1:]], capture_output=True, text=True, timeout=60
    )
    assert ran.stdout.count("a,b") == 2, ran.stderr
    assert all(f"[{rank}] " in ran.stdout for rank in (0, 1))
