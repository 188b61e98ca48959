"""Settings of the documentation: `make docs` builds it and takes every warning for an error."""

from __future__ import annotations

import importlib.metadata

project = "research_gym"
author = "the research_gym authors"
release = importlib.metadata.version("research-gym")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]

html_theme = "furo"
html_title = f"research_gym {release}"
exclude_patterns = ["_build"]

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

# Docstrings write code as `code`.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
