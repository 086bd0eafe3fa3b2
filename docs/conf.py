"""Configuration of the documentation; the build needs no network."""

import os
import re
import sys
from pathlib import Path

from docutils import nodes
from docutils.utils.math import latex2mathml, pick_math_environment

import freqfm
from freqfm.backends.support import table

sys.path.insert(0, str(Path(__file__).parent))
# Examples that would download data use what is there, or synthetic data.
os.environ["FREQFM_OFFLINE"] = "1"

project = "freqfm"
author = "The freqfm developers"
copyright = author
release = version = freqfm.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.viewcode",
    "matplotlib.sphinxext.plot_directive",
    "numpydoc",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
templates_path = ["_templates"]
exclude_patterns = ["_build", "figures"]
default_role = "py:obj"

autosummary_generate = True
autodoc_member_order = "groupwise"
# The template of classes lists the methods.
numpydoc_show_class_members = False
# Docstrings describe the types of parameters; signatures with them would be hard to read.
autodoc_typehints = "none"

# Blocks that are doctests and figures at once.
plot_include_source = True
plot_html_show_formats = False
plot_html_show_source_link = False
plot_formats = [("png", 150)]
plot_rcparams = {"figure.figsize": (7.5, 3.6), "figure.constrained_layout.use": True}
plot_apply_rcparams = True

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "auto_examples",
    "filename_pattern": r"/(quickstart|plot_\w+)\.py$",
    "within_subsection_order": "gallery_order.place",
    "backreferences_dir": "generated/backreferences",
    "doc_module": ("freqfm",),
    # Tables and reports are shown, the names of matplotlib's objects are not.
    "capture_repr": ("_repr_html_",),
    "min_reported_time": 0,
    # As many examples at once as sphinx-build's -j says.
    "parallel": True,
    "thumbnail_size": (480, 336),
    "download_all_examples": False,
    # Its page of times would load scripts from other sites.
    "write_computation_times": False,
}

# The prompts of doctests and shells are not copied, nor is output.
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_exclude = ".linenos, .gp, .go"

toc_object_entries_show_parents = "hide"
html_math_renderer = "mathml"
html_theme = "pydata_sphinx_theme"
html_title = "freqfm"
html_favicon = "_static/logo.svg"
html_static_path = ["_static"]
html_css_files = ["freqfm.css"]
html_show_sourcelink = False
html_sidebars = {page: [] for page in ("index", "get_started")}
html_theme_options = {
    "logo": {"text": "freqfm", "image_light": "_static/logo.svg", "image_dark": "_static/logo.svg"},
    "navigation_with_keys": False,
    "header_links_before_dropdown": 6,
    "navbar_align": "left",
    "secondary_sidebar_items": {"**": ["page-toc"], "index": []},
    "footer_start": ["copyright"],
    "footer_end": [],
}


def mathml(node, as_block):
    """Return a formula as MathML, which browsers draw without scripts."""
    text = node.astext()
    if as_block and pick_math_environment(text) == "align*":
        text = f"\\begin{{align*}}{text}\\end{{align*}}"
    return latex2mathml.tex2mathml(text, as_block=as_block)


def write_inline_math(writer, node):
    """Write a formula within a line."""
    writer.body.append(mathml(node, False))
    raise nodes.SkipNode


def write_math_block(writer, node):
    """Write a formula on lines of its own, which scrolls where it is wider than the page."""
    writer.body.append(f'<div class="math">{mathml(node, True)}</div>\n')
    raise nodes.SkipNode


def skip_routing(app, what, name, obj, skip, options):
    """Leave out the methods of scikit-learn's metadata routing."""
    return True if re.fullmatch(r"set_\w+_request|get_metadata_routing", name) else None


def unlink(app, what, name, obj, options, lines):
    """Turn the labels of scikit-learn's own guide, in inherited docstrings, into plain text."""
    if (getattr(obj, "__module__", None) or "").startswith("sklearn."):
        lines[:] = [re.sub(r":ref:`([^`<]+?)(?:\s*<[^>]*>)?`", r"\1", line) for line in lines]


def unlink_metrics(app, doctree):
    """Turn what docutils takes for mail addresses, such as NDCG@20, into plain text."""
    for node in list(doctree.findall(nodes.reference)):
        if node.get("refuri", "").startswith("mailto:"):
            node.replace_self(node.children)


def support_table(columns):
    """Return some columns of the table of what can be used where, as text."""
    lines = [".. list-table::", "   :header-rows: 1", "", "   * -"]
    lines += [f"     - {column}" for column in columns]
    for name, marks in table()[1].items():
        lines.append(f"   * - ``{name}``" if '"' in name else f"   * - {name}")
        marks = {column: "" if mark == "-" else mark for column, mark in marks.items()}
        lines += [f"     - {marks[column]}" for column in columns]
    return "\n".join(lines)


def show_support(app, docname, source):
    """Put a table in the place of lines such as ``.. support:: GPU, Dask``."""

    def found(match):
        return support_table(match[1].split(", "))

    source[0] = re.sub(r"^\.\. support:: (.+)$", found, source[0], flags=re.M)


def setup(app):
    """Connect the hooks."""
    app.connect("source-read", show_support)
    app.add_html_math_renderer("mathml", (write_inline_math, None), (write_math_block, None))
    app.connect("autodoc-skip-member", skip_routing)
    app.connect("autodoc-process-docstring", unlink, priority=600)
    app.connect("doctree-read", unlink_metrics)
