"""A machine as a file: read with every cell checked, so that a wrong one is named by its place."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# What stands under each key: the kind of value, and in words what is expected.
_COUNT = "a whole number of at least 1"
_FIELDS = {
    "name": (str, "a text"),
    "processor": (str, "a text"),
    "sockets": (int, _COUNT),
    "numa_nodes": (int, _COUNT),
    "physical_cores": (int, _COUNT),
    "logical_cores": (int, _COUNT),
    "quota_cores": (float, "a positive number, or null for no limit"),
    "cores": (list, "a list of logical CPUs"),
    "caches": (dict, 'sizes in bytes by name, such as {"L1d": 32768}'),
    "simd": (list, "a list of texts"),
    "memory_bytes": (int, "a whole number of at least 0"),
    "gpus": (list, "a list of texts"),
    "os": (str, "a text"),
}
_CORE = ("cpu", "core", "socket", "numa")


class MachineFileError(ValueError):
    """A machine's file does not hold a machine; the text says what, and at which place."""


def read(path: str | os.PathLike) -> dict[str, Any]:
    """Read a machine's file.

    Args:
        path: the file, JSON as `Machine.to_file` writes it.

    Returns:
        dict: its content, checked.

    Raises:
        MachineFileError: when it is no JSON (with line and column) or no machine (with the key).
        OSError: when there is no such file.
    """
    file = Path(path)
    try:
        plain = json.loads(file.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        place = f"byte {error.start}"
        raise _wrong(file.name, place, "text in UTF-8", repr(error.object[error.start])) from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        came = repr(error.doc[error.pos : error.pos + 20]) if error.doc[error.pos :] else "the end"
        raise _wrong(file.name, place, f"JSON ({error.msg})", came) from None
    return check(plain, file.name)


def check(plain: Any, source: str = "machine") -> dict[str, Any]:
    """Hold the plain values of a machine against what they must be.

    Args:
        plain: what came, for example from JSON.
        source: how the message calls it: the file's name.

    Returns:
        dict: the same.

    Raises:
        MachineFileError: at the first key that is missing, unknown or holds nonsense.
    """
    if not isinstance(plain, Mapping):
        raise _wrong(source, "the top", f"an object with {', '.join(_FIELDS)}", _shown(plain))
    for key in plain:
        if key not in _FIELDS:
            raise _wrong(source, key, f"only {', '.join(_FIELDS)}", "a key of that name")
    for key, (kind, expected) in _FIELDS.items():
        if key not in plain:
            raise _wrong(source, key, expected, "nothing")
        if not _fits(key, plain[key], kind):
            raise _wrong(source, key, expected, _shown(plain[key]))
    _check_parts(plain, source)
    _check_counts(plain, source)
    return dict(plain)


def _fits(key: str, value: Any, kind: type) -> bool:
    if key == "quota_cores":
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return value is None or (number and 0 < value < float("inf"))
    if kind is int:
        return _whole(value) and value >= (0 if key == "memory_bytes" else 1)
    return isinstance(value, list | tuple) if kind is list else isinstance(value, kind)


def _check_parts(plain: Mapping[str, Any], source: str) -> None:
    for key in ("simd", "gpus"):
        for number, value in enumerate(plain[key]):
            if not isinstance(value, str):
                raise _wrong(source, f"{key}[{number}]", "a text", _shown(value))
    for kind, size in plain["caches"].items():
        if not (_whole(size) and size > 0):
            raise _wrong(source, f"caches.{kind}", "a size in bytes", _shown(size))
    seen = set()
    for number, core in enumerate(plain["cores"]):
        place = f"cores[{number}]"
        if not isinstance(core, Mapping) or set(core) != set(_CORE):
            raise _wrong(source, place, f"an object with {', '.join(_CORE)}", _shown(core))
        for key in _CORE:
            if not (_whole(core[key]) and core[key] >= 0):
                expected = "a whole number of at least 0"
                raise _wrong(source, f"{place}.{key}", expected, _shown(core[key]))
        if core["cpu"] in seen:
            raise _wrong(source, f"{place}.cpu", "each logical CPU once", f"{core['cpu']} again")
        seen.add(core["cpu"])


def _check_counts(plain: Mapping[str, Any], source: str) -> None:
    """The counts say again what the list of cores says: they must agree."""
    cores = plain["cores"]
    counted = {
        "logical_cores": len(cores),
        "physical_cores": len({core["core"] for core in cores}),
        "sockets": len({core["socket"] for core in cores}),
        "numa_nodes": len({core["numa"] for core in cores}),
    }
    for key, count in counted.items():
        if plain[key] != count:
            raise _wrong(source, key, f"{count}, as many as `cores` lists", _shown(plain[key]))


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]} ..."


def _wrong(source: str, place: str, expected: str, came: str) -> MachineFileError:
    return MachineFileError(
        f"{source}, at {place}: expected {expected}, got {came}. "
        "`machine.describe().to_file(path)` writes such a file."
    )
