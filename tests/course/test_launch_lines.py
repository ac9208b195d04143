"""Launch lines of the sources are understood word by word, and written for today's launchers.

Tests dlcourse.launch_lines and dlguide.cluster.launch_command.
"""

import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlcourse import launch_lines
from dlguide.cluster import launch_command
from dlguide.cluster.batch import Job, Profile, render

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
DECK = (
    "/usr/lib64/openmpi/bin/mpirun --allow-run-as-root -np $NP -cpus-per-proc $PER_PROC "
    "-map-by socket -H 192.168.10.110 --report-bindings --oversubscribe -x LD_LIBRARY_PATH "
    "python ./tf_cnn_benchmarks.py"
)
HANDS_ON = (
    "mpirun -prepend-rank -genv OMP_NUM_THREADS=2 -genv I_MPI_DEBUG=5 -n 4 python -u cnn_mnist.py"
)
NVCAFFE = 'mpirun -bind-to none -np 48 --tag-output caffe train --solver "a b.prototxt"'
LINES = [IMAGENET, THESIS, GUIDE_64, DECK, HANDS_ON, NVCAFFE]


def said(launch, beginning):
    (found,) = [word for word in launch.words if word.text.startswith(beginning)]
    return found


@pytest.mark.parametrize("line", LINES)
def test_every_word_of_the_line_is_explained_or_belongs_to_the_program(line):
    launch = launch_lines.explain(line)
    told = " ".join(word.text for word in launch.words).split()
    plain = shlex.split(line.replace("\\\n", " "), posix=True)
    program = [word.strip('"') for word in launch.job.program]
    left = [word for word in plain if word not in program]
    shown = {word.strip("\"'") for word in told} | {word.replace('"', "") for word in told}
    assert not [word for word in left if word not in shown]
    assert all(word.did for word in launch.words)
    assert all(word.note for word in launch.words if word.state != "works")


def test_the_imagenet_line_is_448_nodes_and_its_dead_words_are_named():
    launch = launch_lines.explain(IMAGENET)
    assert launch.launcher == "mpiexec of MPICH and Intel MPI"
    job = launch.job
    assert (job.ranks, job.per_node, job.cpus, job.hostfile) == ("896", "2", "22", "hostfile")
    assert job.label
    assert said(launch, "-PSM2").state == "dead"
    assert said(launch, "MLSL_NUM_SERVERS").state == "dead"
    assert "896 ranks, 2 on a node, need 448 nodes." in launch.findings
    assert set(job.variables) == {"OMP_NUM_THREADS", "KMP_AFFINITY"}
    assert job.program == ("./build/tools/caffe", "train", "--solver=s.prototxt")


def test_c12_the_copied_flags_are_called_dated_and_left_out_of_todays_lines():
    launch = launch_lines.explain(THESIS)
    states = {word.text: word.state for word in launch.words if word.state != "works"}
    dated = dict.fromkeys(("-bind-to none", "-mca pml ob1", "-mca btl ^openib"), "dated")
    assert states == {**dated, "-oversubscribe": "harmful"}
    assert "no InfiniBand" in said(launch, "-mca btl").did
    assert "gives up pinning" in said(launch, "-bind-to").note
    for command in launch_command.all_lines(launch.job).values():
        assert not any(word in command for word in ("openib", "ob1", "oversub", "bind-to none"))


def test_c25_the_line_with_export_runs_nothing_and_needs_256_nodes():
    launch = launch_lines.explain(GUIDE_64)
    assert any("As printed this runs nothing" in finding for finding in launch.findings)
    assert "512 ranks, 2 on a node, need 256 nodes." in launch.findings
    assert "2 ranks x 20 threads keep 40 cores of a node busy." in launch.findings
    assert said(launch, "I_MPI_FABRICS").state == "dead"
    # the shell agrees: nothing but an error of `export`
    ran = subprocess.run(
        ["bash", "-c", "X=1 export Y=tmi mpirun -np 2 echo ran"],
        capture_output=True, text=True, timeout=20,
    )  # fmt: skip
    assert "ran" not in ran.stdout
    assert ran.returncode != 0


@pytest.mark.parametrize("line", LINES)
def test_todays_lines_say_the_same_job(line):
    job = launch_lines.explain(line).job
    for name, command in launch_command.all_lines(job).items():
        if name == "Slurm":  # srun is written, not read
            continue
        again = launch_lines.explain(command)
        if name in ("MPICH", "Intel MPI"):
            assert again.launcher == "mpiexec of MPICH and Intel MPI"
        assert again.job.ranks == job.ranks
        assert again.job.program == job.program
        assert again.job.label == job.label
        kept = {key: value for key, value in again.job.variables.items() if key in job.variables}
        assert kept.keys() == job.variables.keys()
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


@pytest.mark.parametrize(
    ("line", "must"),
    [
        ("", r"`command` must have a launcher, .* got ''"),
        ("ls -l", r"`command` must have a launcher, .* got 'ls -l'"),
        ("mpirun -np 2 -mcca a b x", r"got 'mcca'\. Did you mean mca\?"),
        ("mpiexec -np two x", r"have a count after -np, got 'two'"),
        ("mpiexec -np", r"have a value after -np, got 'nothing'"),
        ("mpiexec -np 2 'x", r"close each quotation mark"),
        ("time mpiexec -np 2 x", r"have only variables before the launcher, got 'time'"),
        ("mpirun -np 2 -x", r"have a value after -x, got 'nothing'"),
    ],
)
def test_a_fault_is_named(line, must):
    with pytest.raises(ValueError, match=must):
        launch_lines.explain(line)


@given(st.text(st.sampled_from("mpirun-x $='\"&\\\n2"), max_size=30))
def test_any_line_is_read_or_refused(rest):
    reasons = []
    try:
        launch_lines.explain(f"mpirun {rest}")
    except ValueError as error:
        reasons.append(str(error))
    assert all(reason.startswith("`") for reason in reasons)


def test_launch_line_of_a_batch_job_is_explained_as_that_job():
    line = render.launch(Job("train.py", nodes=2, ranks_per_node=4, threads=7), Profile())
    said = launch_lines.explain(line).job
    assert (said.ranks, said.per_node, said.program) == ("8", "4", ("python", "train.py"))
    assert "-bind-to core:7" in line
