"""The documentation site: `make docs` writes docs/_build/html; nothing in it needs the network."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

from unlazy._version import VERSION

project, author, release = "unlazy", "the unlazy developers", VERSION
copyright = author
extensions = [
    "myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_gallery.gen_gallery",
    "dead_links", "experiments", "mathml", "playground", "reference",
]  # fmt: skip
html_theme = "furo"
html_title = f"unlazy {VERSION}"
html_static_path = ["_static"]
html_css_files = ["unlazy.css"]
exclude_patterns = ["_build", "gallery/*.md5", "gallery/*.ipynb", "**/sg_execution_times.rst", "sg_execution_times.rst"]
myst_heading_anchors = 3
myst_enable_extensions = ["dollarmath"]
html_math_renderer = "mathml"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
napoleon_google_docstring = False
napoleon_use_ivar = True
napoleon_use_param = False
napoleon_use_rtype = False
suppress_warnings = ["ref.python"]  # words such as "shape" in types of attributes
autodoc_member_order = "bysource"
autodoc_class_signature = "separated"
sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$",
    "remove_config_comments": True,
    "show_memory": False,
    "download_all_examples": False,
    "abort_on_example_error": True,
    "plot_gallery": "True",
    "min_reported_time": 1e9,
}
