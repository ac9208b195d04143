"""Static check of a script that ranks run in parallel unchanged: the lines that forbid it.

What only shows while the script runs is refused then, by `dlguide.horovod.transparent`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from dlguide.errors import require

OWN_RANKS = "starts or expects its own ranks: use `dlguide run` without `--transparent`"
FORBIDDEN = {
    "mpi4py": f"imports mpi4py and so {OWN_RANKS}",
    "horovod": f"imports Horovod and so {OWN_RANKS}",
    "dlguide.horovod": f"imports dlguide.horovod and so {OWN_RANKS}",
    "torch": "imports PyTorch, and only Keras on TensorFlow can be made parallel",
    "keras.distribution": "distributes by itself, with `keras.distribution`",
    "tensorflow.distribute": "distributes by itself, with `tf.distribute`",
}
WRITERS = (
    *("tf.saved_model.save", "tf.io.TFRecordWriter", "tf.io.write_file"),
    "tf.summary.create_file_writer",
)
SAVERS = ("tf.train.Checkpoint", "tf.train.CheckpointManager")  # they write or read
OPENERS = ("h5py.File", "gfile.GFile")  # these take a mode
IMPORTERS = ("import_module", "__import__")
RANK_VARIABLE = re.compile(
    r"(PMI|PMIX|OMPI|MPI|MV2|SLURM|HOROVOD|PALS|FLUX)_(COMM_WORLD_|TASK_)?"
    r"(LOCAL_|NODE_)?(RANK|SIZE|PROCID|LOCALID|NTASKS|LOCALRANKID|LOCALNRANKS)"
    r"|RANK|LOCAL_RANK|WORLD_SIZE"
)


def check(script: str) -> list[str]:
    """Return the reasons in a script's text why it cannot be made parallel."""
    try:
        tree = ast.parse(Path(script).read_bytes())
    except (SyntaxError, ValueError) as error:
        place = f"line {getattr(error, 'lineno', None) or '?'}: {getattr(error, 'msg', error)}"
        require(False, "script", "be a Python script", script, f"It is not: {place}.")
    found = {(node.lineno, why) for node, why in [*_reasons(tree), *_named_reasons(tree)]}
    return [f"line {line}: {why}" for line, why in sorted(found)]


def _reasons(tree: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Yield the nodes that forbid it, each with its reason."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(IMPORTERS):
            names = [arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant)]
        else:
            names = []
        for name in names:
            for module, why in FORBIDDEN.items():
                if f"{name}.".startswith(f"{module}."):
                    yield node, why
        if isinstance(node, ast.Attribute):
            owner = ast.unparse(node.value)
            strategy = node.attr.endswith("Strategy") and "distribute" in owner
            if strategy and node.attr != "get_strategy":
                yield node, f"distributes by itself, with `{ast.unparse(node)}`"
            elif node.attr == "distribution" and owner == "keras":
                yield node, FORBIDDEN["keras.distribution"]
        if isinstance(node, ast.Call) and _writes(node):
            yield node, f"writes with `{ast.unparse(node.func)}`, which every rank would do"
        backend = _assigned_backend(node)
        if backend not in (None, "tensorflow"):
            yield node, f"sets KERAS_BACKEND to {backend!r}: only TensorFlow can be made parallel"


def _named_reasons(tree: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Yield the nodes that forbid it because of an assignment elsewhere."""
    environments, savers = {"environ"}, {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "os":
            environments |= {a.asname for a in node.names if a.name == "environ" and a.asname}
        elif isinstance(node, ast.Assign):
            value, names = ast.unparse(node.value), [ast.unparse(each) for each in node.targets]
            if value.split(".")[-1] == "environ":
                environments.update(names)
            elif isinstance(node.value, ast.Call):
                called = ast.unparse(node.value.func)
                savers.update(dict.fromkeys(names, called) if called.endswith(SAVERS) else {})
    for node in ast.walk(tree):
        text = _environment(node, environments)
        if text is not None and RANK_VARIABLE.fullmatch(text):
            yield node, f"reads its own rank or their number ({text})"
        saves = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if saves and node.func.attr in ("save", "write"):
            saver = node.func.value
            called = ast.unparse(saver.func) if isinstance(saver, ast.Call) else ""
            called = called if called.endswith(SAVERS) else savers.get(ast.unparse(saver))
            if called:
                yield node, f"writes with `{called}`, which every rank would do"


def _writes(node: ast.Call) -> bool:
    """Return whether a call writes files without Python's `open`."""
    called = ast.unparse(node.func)
    if called.endswith(WRITERS):
        return True
    modes = [*node.args[1:2], *(each.value for each in node.keywords if each.arg == "mode")]
    mode = next((each.value for each in modes if isinstance(each, ast.Constant)), "r")
    return called.endswith(OPENERS) and mode not in ("r", "rb")


def _environment(node: ast.AST, environments: set[str]) -> str | None:
    """Return the variable that a node reads or looks for in what the script calls `os.environ`."""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        source, key = ast.unparse(node.value), node.slice
    elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
        source, key = ast.unparse(node.comparators[0]), node.left
    elif isinstance(node, ast.Call) and node.args:
        source, key = ast.unparse(node.func), node.args[0]
        if not source.endswith("getenv") and "." in source:
            source = source.removesuffix(".get")
    else:
        return None
    reads = source in environments or source.endswith((".environ", "getenv"))
    constant = isinstance(key, ast.Constant) and isinstance(key.value, str)
    return key.value if reads and constant else None


def _assigned_backend(node: ast.AST) -> str | None:
    """Return the value of KERAS_BACKEND that a script sets, if its text shows it."""
    if isinstance(node, ast.Assign):
        key = node.targets[0].slice if isinstance(node.targets[0], ast.Subscript) else None
        value = node.value
    elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("environ.setdefault"):
        key, value = (*node.args, None, None)[:2]
    else:
        return None
    named = isinstance(key, ast.Constant) and key.value == "KERAS_BACKEND"
    return value.value if named and isinstance(value, ast.Constant) else None
