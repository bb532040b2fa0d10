"""Sphinx configuration: ``pip install ".[docs]" && sphinx-build -W docs docs/_build``.

The gallery's scripts run in the build; ``-D plot_gallery=0`` leaves them out. Nothing is fetched from the network unless
``DOCS_INTERSPHINX=1`` asks for links to the documentation of Python, torch and neuraloperator.
"""

import os
import warnings

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TQDM_DISABLE", "1")

import neuralop_mup

project = "neuralop_mup"
author = "The neuralop_mup developers"
release = neuralop_mup.__version__
html_title = f"neuralop_mup {release}"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx_gallery.gen_gallery",
]
# Proposals to neuraloperator are no pages for users.
exclude_patterns = ["_build", "upstream", "gallery/**/*.ipynb", "gallery/**/*.py"]
html_theme = "furo"

myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 3

autodoc_typehints = "none"
# A reference to something of ours that is not there is an error. Types in docstrings ("sequence of int") are words, and
# torch's are looked up only with intersphinx.
nitpicky = True
nitpick_ignore_regex = [(r"py:.*", r"(?!neuralop_mup\.).*")]

if os.environ.get("DOCS_INTERSPHINX"):
    extensions.append("sphinx.ext.intersphinx")
    intersphinx_mapping = {
        "python": ("https://docs.python.org/3", None),
        "torch": ("https://docs.pytorch.org/docs/stable", None),
        "neuralop": ("https://neuraloperator.github.io/dev", None),
    }

# Scripts print neuralop's own harmless warnings, and sphinx would take them into the page.
warnings.filterwarnings("ignore", message=".*received unexpected keyword arguments")
sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"/plot_",
    "ignore_pattern": r"(?<!plot_)learned_activations\.py",  # what one of the scripts imports
    "within_subsection_order": "ExampleTitleSortKey",
    "abort_on_example_error": False,
    "only_warn_on_example_error": False,
    "show_memory": False,
    "show_signature": False,
    "download_all_examples": False,
    "image_srcset": [],
    "thumbnail_size": (320, 210),
    "remove_config_comments": True,
    "min_reported_time": 0,
}
