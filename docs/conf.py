"""Configuration of the documentation; the build needs no network."""

import re

import freqfm

project = "freqfm"
author = "The freqfm developers"
copyright = author
release = version = freqfm.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "sphinx_gallery.gen_gallery",
]
templates_path = ["_templates"]
exclude_patterns = ["_build"]
default_role = "py:obj"

autosummary_generate = True
autodoc_member_order = "groupwise"
# The template of classes lists the methods.
numpydoc_show_class_members = False
# Docstrings describe the types of parameters; signatures with them would be hard to read.
autodoc_typehints = "none"

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "auto_examples",
    "filename_pattern": r"/(quickstart|plot_\w+)\.py$",
    "min_reported_time": 0,
}

html_theme = "pydata_sphinx_theme"
html_title = f"freqfm {release}"
html_show_sourcelink = False
html_theme_options = {"navigation_with_keys": False}


def skip_routing(app, what, name, obj, skip, options):
    """Leave out the methods of scikit-learn's metadata routing."""
    return True if re.fullmatch(r"set_\w+_request|get_metadata_routing", name) else None


def unlink(app, what, name, obj, options, lines):
    """Turn the labels of scikit-learn's own guide, in inherited docstrings, into plain text."""
    if (getattr(obj, "__module__", None) or "").startswith("sklearn."):
        lines[:] = [re.sub(r":ref:`([^`<]+?)(?:\s*<[^>]*>)?`", r"\1", line) for line in lines]


def setup(app):
    """Connect the hooks."""
    app.connect("autodoc-skip-member", skip_routing)
    app.connect("autodoc-process-docstring", unlink, priority=600)
