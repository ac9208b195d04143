"""Old imports of a learner's notebook: one line that names the new place."""

import importlib

import pytest

from dlguide.moved import MOVED


@pytest.mark.parametrize("name", MOVED)
def test_an_old_import_names_the_new_place_which_exists(name):
    package, _, last = name.rpartition(".")
    for code in (f"import {name}", f"from {package} import {last}"):
        with pytest.raises(ImportError, match=f"`{name}` is now in `{MOVED[name]}`") as caught:
            exec(code, {})
        assert "\n" not in str(caught.value)
    importlib.import_module(MOVED[name])
