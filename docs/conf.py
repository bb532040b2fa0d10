"""Sphinx configuration: ``pip install ".[docs]" && sphinx-build -W docs docs/_build``.

The gallery's scripts run in the build; ``-D plot_gallery=0`` leaves them out. Nothing is fetched from the network, by the
build or by a page, unless ``DOCS_INTERSPHINX=1`` asks for links to the documentation of Python, torch and neuraloperator.
"""

import os
import sys
import warnings
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TQDM_DISABLE", "1")
sys.path.insert(0, str(Path(__file__).parent / "_ext"))

import neuralop_mup

#: Where the repository is, such as "https://github.com/NAME/neuralop_mup". The home page links to it, and pages to
#: their sources there; "": no links.
REPOSITORY = ""

project = "neuralop_mup"
author = "The neuralop_mup developers"
version = release = neuralop_mup.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",  # the table at the top of each reference page
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx-mathjax-offline",  # MathJax itself, so that formulas need no network
    "sphinx_gallery.gen_gallery",
    "command_options",
]
# Proposals to neuraloperator are no pages for users.
exclude_patterns = ["_build", "upstream", "gallery/**/*.ipynb", "gallery/**/*.py"]

html_theme = "furo"
html_title = f"neuralop_mup {release}"  # in the sidebar of every page
html_static_path = ["_static"]
html_css_files = ["custom.css"]
html_js_files = ["scroll_boxes.js"]
html_theme_options = (
    {"source_repository": f"{REPOSITORY}/", "source_branch": "main", "source_directory": "docs/"}
    if REPOSITORY
    else {"top_of_page_buttons": []}
)

myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 3

autodoc_typehints = "none"
autosummary_generate = False  # tables only: the entries stand below them
python_maximum_signature_line_length = 88  # beyond that an argument a line, with its default
toc_object_entries_show_parents = "hide"
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
    "within_subsection_order": "gallery_order.place",
    "reset_modules": ("matplotlib", "seaborn", "gallery_order.letters"),
    "abort_on_example_error": False,
    "only_warn_on_example_error": False,
    "show_memory": False,
    "show_signature": False,
    "download_all_examples": False,
    "image_srcset": [],
    "thumbnail_size": (320, 210),
    "remove_config_comments": True,
    "min_reported_time": 0,
    "write_computation_times": False,  # a page that loads scripts from the network
}


def _no_source_links(app, pagename, templatename, context, doctree):
    """Pages of the gallery are made from scripts, so there is no file of theirs to be edited."""
    if pagename.startswith("gallery/"):
        context["page_source_suffix"] = ""


def setup(app):
    app.connect("html-page-context", _no_source_links)
