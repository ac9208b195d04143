"""Loaded libraries are those whose files are mapped into the process."""

import subprocess
import sys

import pytest
from fake_machine import write

from dlguide.machine import libraries

LINE = "7f00-7f01 r-xp 00000000 08:01 1                      {}"


def mapped(root, *paths):
    write(root / "self/maps", "\n".join(LINE.format(path) for path in paths))
    return libraries.loaded(root)


@pytest.mark.parametrize(
    ("file", "role", "name"),
    [
        ("/e/numpy.libs/libscipy_openblas64_-56d6093b.so", "BLAS", "OpenBLAS"),
        ("/opt/intel/libmkl_rt.so.2", "BLAS", "MKL"),
        ("/opt/aocl/libblis-mt.so.4", "BLAS", "BLIS (AOCL)"),
        ("/usr/lib/libblas.so.3", "BLAS", "reference BLAS"),
        ("/usr/lib/libdnnl.so.3", "deep learning", "oneDNN"),
        ("/old/libmkldnn.so.0", "deep learning", "oneDNN"),
        ("/e/tensorflow/libtensorflow_cc.so.2", "deep learning", "TensorFlow"),
        ("/e/nvidia/libcudnn_ops.so.9", "deep learning", "cuDNN"),
        ("/opt/rocm/libMIOpen.so.1", "deep learning", "MIOpen"),
        ("/usr/lib/libgomp.so.1.0.0", "threads", "OpenMP of GCC"),
        ("/old/libiomp5.so", "threads", "OpenMP of Intel"),
        ("/usr/lib/libomp.so.5", "threads", "OpenMP of LLVM"),
        ("/e/lib/libtbb.so.12", "threads", "TBB"),
        ("/e/lib/libmpi.so.12", "messages", "MPI"),
        ("/e/lib/libnccl.so.2 (deleted)", "messages", "NCCL"),
    ],
)
def test_a_file_is_known_by_its_name(tmp_path, file, role, name):
    (found,) = mapped(tmp_path, file)
    assert (found.role, found.name) == (role, name)
    assert found.path == file.removesuffix(" (deleted)")


def test_what_is_no_such_library_is_left_out(tmp_path):
    others = ("/usr/lib/libc.so.6", "[heap]", "/data/libopenblas_notes.txt", "/e/libmpifort_x")
    assert mapped(tmp_path, *others) == ()
    assert libraries.loaded(tmp_path / "none") == ()


def test_several_files_of_one_library_count_once_and_copies_are_counted(tmp_path):
    found = mapped(
        tmp_path,
        "/a/libtensorflow_cc.so.2",
        "/a/libtensorflow_framework.so.2",
        "/a/libscipy_openblas.so",
        "/b/libopenblas.so.0",
        "/a/libscipy_openblas.so",
    )
    assert [each.name for each in found] == ["OpenBLAS", "OpenBLAS", "TensorFlow"]
    text = libraries.told(found)
    assert "BLAS: OpenBLAS (open source), 2 copies" in text
    assert "messages: none loaded" in text


def test_numpy_s_blas_is_seen_here_once_it_is_loaded():
    code = (
        "from dlguide.machine import libraries\n"
        "import numpy as np\n"
        "np.ones((8, 8)) @ np.ones((8, 8))\n"
        "blas = np.show_config(mode='dicts')['Build Dependencies']['blas']['name']\n"
        "found = libraries.loaded()\n"
        "print(blas, [each.name for each in found if each.role == 'BLAS'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True
    )
    blas, found = done.stdout.split(maxsplit=1)
    for word, name in {"openblas": "OpenBLAS", "mkl": "MKL", "blis": "BLIS"}.items():
        if word in blas:
            assert name in found
