"""Sphinx configuration of the site; `docs/build.py` prepares the sources and calls Sphinx."""

from __future__ import annotations

import functools
import re
import sys

from docutils import nodes
from latex2mathml.converter import convert

project = "dlguide"
copyright = "the dlguide developers, Apache-2.0"  # the name that Sphinx reads
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_codeautolink",
    "sphinx_copybutton",
]
exclude_patterns = ["extra"]
suppress_warnings = ["myst.header", "mystnb.mime_priority", "config.cache", "ref.python"]
templates_path = []
nitpicky = False

# Lessons are shown as they ran; nothing is executed here.
nb_execution_mode = "off"
nb_merge_streams = True
nb_mime_priority_overrides = [("html", "text/html", 0), ("html", "text/latex", 90)]
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence", "attrs_inline"]
myst_heading_anchors = 4
myst_links_external_new_tab = False
myst_url_schemes = ("http", "https", "mailto")

default_role = "literal"  # docstrings write `name` for code
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_default_options = {"members": True, "show-inheritance": False}
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_custom_sections = [("Source", "notes_style"), ("Formula", "notes_style")]
codeautolink_warn_on_missing_inventory = False
codeautolink_warn_on_failed_resolve = False
codeautolink_custom_blocks = {}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

html_theme = "pydata_sphinx_theme"
html_title = "dlguide: deep learning at scale"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_extra_path = ["extra"]
html_copy_source = False
html_show_sphinx = False
html_math_renderer = "mathml"
html_context = {"default_mode": "auto"}
html_theme_options = {
    "logo": {"text": "dlguide"},
    "show_toc_level": 2,
    "navigation_with_keys": True,
    "header_links_before_dropdown": 6,
    "navbar_align": "left",
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}


def _escaped(line: str) -> str:
    """Escape the characters that reStructuredText would read as markup, outside of code."""
    parts = re.split(r"(``[^`]*``|`[^`]*`)", line)
    for index in range(0, len(parts), 2):
        parts[index] = re.sub(r"([*|\\])|(?<=\w)_(?=\W|$)", r"\\\g<0>", parts[index])
    return "".join(parts)


def prepare_docstring(app, what, name, object_, options, lines: list[str]) -> None:
    """Turn a docstring of the project into what napoleon expects.

    Indented blocks outside of sections are code or formulas; the rest is plain text.
    """
    written, kind, section = [], "text", False
    for line in lines:
        if re.match(r"^\w+:\s*$", line):
            section, kind = True, "text"
        elif line and not line.startswith(" "):
            section, kind = False, "shell" if line.startswith(">>>") else "text"
        if line.lstrip().startswith(">>>"):
            kind = "shell"
        elif not line.strip() and kind == "shell":
            kind = "text"
        if line.startswith("    ") and not section and kind == "text":
            written += ["::", ""] if not written or not written[-1].strip() else ["", "::", ""]
            kind = "code"
        written.append(line if kind in ("code", "shell") else _escaped(line))
    lines[:] = written


@functools.cache
def _homes() -> dict[int, str]:
    """Map each public object to the shortest module that names it in `__all__`."""
    found: dict[int, str] = {}
    for name in sorted(sys.modules, key=lambda name: (name.count("."), name)):
        if name.split(".")[0] == "dlguide":
            for public in getattr(sys.modules[name], "__all__", ()):
                found.setdefault(id(getattr(sys.modules[name], public)), name)
    return found


def describe_once(app, what, name, object_, skip, options) -> bool | None:
    """Leave out of a module's page what the page of its package describes."""
    page = app.env.current_document.docname.rpartition("/")[2]
    return True if _homes().get(id(object_), page) != page else None


def _formula(self, node: nodes.Element, display: str) -> None:
    # a wide formula scrolls, also by keyboard
    focus = ' tabindex="0"' if display == "block" else ""
    self.body.append(f'<span class="math {display}"{focus}>')
    self.body.append(convert(node.astext(), display=display))
    self.body.append("</span>")
    raise nodes.SkipNode


def setup(app) -> None:
    """Register the formulas, which need neither a script nor the network, and the docstrings."""
    app.add_html_math_renderer(
        "mathml",
        (lambda self, node: _formula(self, node, "inline"), None),
        (lambda self, node: _formula(self, node, "block"), None),
    )
    app.connect("autodoc-skip-member", describe_once)
    app.connect("autodoc-process-docstring", prepare_docstring, priority=100)
