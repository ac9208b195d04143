"""Loaded libraries are those whose files are mapped into the process."""

import pytest
from command_line import python
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
        ("/e/numpy.libs/libscipy_openblas64_-8f.so", "BLAS", "OpenBLAS"),
        ("/e/lib/libmkl_rt.so.2", "BLAS", "MKL"),
        ("/opt/aocl/libblis-mt.so.4", "BLAS", "BLIS (AOCL)"),
        ("/e/torch.libs/libgomp-a34b3233.so.1.0.0", "threads", "OpenMP of GCC"),
        ("/e/lib/libiomp5.so", "threads", "OpenMP of Intel"),
        ("/usr/lib/libomp.so.5", "threads", "OpenMP of LLVM"),
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


def test_numpy_s_blas_is_seen_here_once_it_is_loaded():
    code = (
        "from dlcourse import onednn\n"
        "import numpy as np\n"
        "np.ones((8, 8)) @ np.ones((8, 8))\n"
        "blas = np.show_config(mode='dicts')['Build Dependencies']['blas']['name']\n"
        "found = onednn.loaded_libraries()\n"
        "print(blas, [each.name for each in found if each.role == 'BLAS'])\n"
    )
    done = python(code, timeout_s=100)
    blas, found = done.stdout.split(maxsplit=1)
    for word, name in {"openblas": "OpenBLAS", "mkl": "MKL", "blis": "BLIS"}.items():
        if word in blas:
            assert name in found


def test_libraries_that_do_the_work_are_named():
    finding = onednn.check_libraries(60)
    assert finding.ok is True, finding
    for role in ("BLAS: ", "deep learning: ", "threads: ", "messages: MPI", "TensorFlow"):
        assert role in finding.found
