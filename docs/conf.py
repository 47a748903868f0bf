"""The site: `make docs` builds it into build/docs, without the network."""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent / "src")]
matplotlib.use("Agg")

import drago  # noqa: E402

project = "drago"
author = "The drago developers"
copyright = author
version = release = drago.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.doctest",
    "numpydoc",
    "myst_parser",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "formulas",
    "names",
    "copies",
    "gallery_links",
]
exclude_patterns = ["_ext", "_static", "_templates", "gallery/*.py", "gallery/*.ipynb", "README.md"]
templates_path = ["_templates"]
nitpicky = True
default_role = "name"

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "attrs_inline"]
myst_heading_anchors = 4
suppress_warnings = ["config.cache"]

autosummary_generate = True
# Classes that are made and handed over: their methods are for those who extend drago.
ALONE_NAMES = [
    "CVaR", "ESRM", "Extremile", "Spectrum", "Chi2Ball", "KLBall", "Simplex", "Grouped",
    "Squared", "Huber", "Logistic", "Multinomial", "Chi2", "KL", "Box", "L2Ball",
    "NonNegative", "Drago", "LBFGS", "Newton", "GradientDescent", "AGOG", "SGD", "LSVRG",
    "Prospect", "Status", "CheckpointError", "ModelFileError", "CollapseWarning",
    "SourceChangedError", "CacheError", "ClusterError", "DatasetNotFoundError",
    "DatasetDownloadError", "DatasetContentError",
]  # fmt: skip
autosummary_context = {"alone": ALONE_NAMES}
autodoc_typehints = "none"
autodoc_member_order = "bysource"
numpydoc_show_class_members = False
numpydoc_xref_param_type = False

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    # A cluster of processes cannot be started from inside of the build: shown, not run.
    "filename_pattern": r"/plot_(?!dask)",
    "ignore_pattern": r"^((?!plot_).)*$",
    "within_subsection_order": "order.InTurn",
    "remove_config_comments": True,
    "download_all_examples": False,
    "show_memory": False,
    "write_computation_times": False,
    "show_signature": False,
    "plot_gallery": "True",
    "image_scrapers": ("matplotlib",),
    "capture_repr": ("_repr_html_", "__repr__"),
    "abort_on_example_error": True,
    "min_reported_time": 5,
    "default_thumb_file": str(HERE / "_static" / "logo.svg"),
    "copyfile_regex": r"",
}

html_theme = "pydata_sphinx_theme"
html_title = "drago"
html_static_path = ["_static"]
html_css_files = ["drago.css"]
html_logo = "_static/logo.svg"
html_favicon = "_static/logo.svg"
html_show_sourcelink = False
html_copy_source = False
html_math_renderer = "mathml"
html_theme_options = {
    "logo": {"text": "drago"},
    "navbar_align": "left",
    "header_links_before_dropdown": 5,
    "show_prev_next": True,
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc", "copy_of_page"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
    "show_toc_level": 2,
}
html_context = {"default_mode": "auto"}
# Pages without others below them have no list of these.
ALONE = "index start theory benchmarks paper peers faq glossary contributing changelog"
html_sidebars = {name: [] for name in ALONE.split()}
toc_object_entries_show_parents = "hide"

doctest_global_setup = "import numpy as np\nimport drago"
