"""Sphinx configuration."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

project = "nnx-ppo"
author = "the nnx-ppo authors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "nnx-ppo"

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autoclass_content = "both"
napoleon_numpy_docstring = False
# Fields documented by "Attributes:" and by a string after the field must not count twice.
napoleon_use_ivar = True

METRICS_MARK = "% metrics table"


def metrics_table() -> str:
    """The table of metric names as markdown, from the one place where they stand."""
    from nnx_ppo.algorithms.metrics import TABLE

    rows = [f"| `{m.name}` | `{m.level.name}` | {m.meaning} | {m.unit} | {'yes' if m.reduced else ''} |" for m in TABLE]
    return "\n".join(["| name | level | meaning | unit | reduced |", "|---|---|---|---|---|", *rows])


def fill_in_metrics(app, docname, source):
    """Put the table where the page asks for it."""
    if docname == "metrics":
        source[0] = source[0].replace(METRICS_MARK, metrics_table())


def setup(app):
    """Register what is generated."""
    app.connect("source-read", fill_in_metrics)
