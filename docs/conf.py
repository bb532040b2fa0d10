"""Sphinx configuration: ``pip install ".[docs]" && sphinx-build docs docs/_build``."""

import neuralop_mup

project = "neuralop_mup"
author = "The neuralop_mup developers"
release = neuralop_mup.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax"]
myst_enable_extensions = ["dollarmath"]
exclude_patterns = ["_build"]
html_theme = "furo"
autodoc_typehints = "none"
