"""Loaded libraries are those whose files are mapped into the process."""

import subprocess
import sys

import pytest
from fake_machine import write

from dlcourse import onednn

LINE = "7f00-7f01 r-xp 00000000 08:01 1                      {}"


def mapped(root, *paths):
    """The libraries of a memory map, without those that this process itself has loaded."""
    write(root / "self/maps", "\n".join(LINE.format(path) for path in paths))
    return tuple(each for each in onednn.loaded_libraries(root) if each.path in text_of(root))


def text_of(root):
    return (root / "self/maps").read_text()


@pytest.mark.parametrize(
    ("file", "role", "name"),
    [
        ("/usr/lib/libblas.so.3", "BLAS", "reference BLAS"),
        ("/usr/lib/libdnnl.so.3", "deep learning", "oneDNN"),
        ("/old/libmkldnn.so.0", "deep learning", "oneDNN"),
        ("/e/tensorflow/libtensorflow_cc.so.2", "deep learning", "TensorFlow"),
        ("/e/lib/libmpi.so.12", "messages", "MPI"),
        ("/e/lib/libnccl.so.2 (deleted)", "messages", "NCCL"),
    ],
)
def test_a_file_is_known_by_its_name(tmp_path, file, role, name):
    (found,) = mapped(tmp_path, file)
    assert (found.role, found.name) == (role, name)
    assert found.path == file.removesuffix(" (deleted)")


@pytest.mark.parametrize(
    ("interface", "prefix", "role", "name"),
    [
        ("openblas", "libscipy_openblas", "BLAS", "OpenBLAS"),
        ("mkl", "libmkl_rt", "BLAS", "MKL"),
        ("blis", "libblis", "BLAS", "BLIS (AOCL)"),
        ("openmp", "libgomp", "threads", "OpenMP of GCC"),
        ("openmp", "libiomp5", "threads", "OpenMP of Intel"),
        ("openmp", "libomp", "threads", "OpenMP of LLVM"),
    ],
)
def test_blas_and_openmp_are_those_of_threadpoolctl(
    tmp_path, monkeypatch, interface, prefix, role, name
):
    pool = {"internal_api": interface, "prefix": prefix, "filepath": "/x.so", "version": None}
    monkeypatch.setattr("threadpoolctl.threadpool_info", lambda: [pool | {"num_threads": 3}])
    (found,) = onednn.loaded_libraries(tmp_path)
    assert (found.role, found.name, found.path, found.threads) == (role, name, "/x.so", 3)


def test_several_files_of_one_library_count_once_and_copies_are_counted(tmp_path):
    found = mapped(
        tmp_path,
        "/a/libtensorflow_cc.so.2",
        "/a/libtensorflow_framework.so.2",
        "/a/libdnnl.so",
        "/b/libdnnl.so",
        "/a/libdnnl.so",
    )
    assert [each.name for each in found] == ["TensorFlow", "oneDNN", "oneDNN"]


def test_numpy_s_blas_is_seen_here_once_it_is_loaded():
    code = (
        "from dlcourse import onednn\n"
        "import numpy as np\n"
        "np.ones((8, 8)) @ np.ones((8, 8))\n"
        "blas = np.show_config(mode='dicts')['Build Dependencies']['blas']['name']\n"
        "found = onednn.loaded_libraries()\n"
        "print(blas, [each.name for each in found if each.role == 'BLAS'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True
    )
    blas, found = done.stdout.split(maxsplit=1)
    for word, name in {"openblas": "OpenBLAS", "mkl": "MKL", "blis": "BLIS"}.items():
        if word in blas:
            assert name in found


def test_libraries_that_do_the_work_are_named():
    finding = onednn.check_libraries(60)
    assert finding.ok is True, finding
    for role in ("BLAS: ", "deep learning: ", "threads: ", "messages: MPI", "TensorFlow"):
        assert role in finding.found
