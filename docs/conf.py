"""How Sphinx builds the site: `make docs`. Everything it shows comes with it; nothing is loaded."""

import sys
from importlib.metadata import version as installed
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

project = "partavg"
author = "The partavg authors"
project_copyright = "The partavg authors"
release = version = installed("partavg")

extensions = ["myst_parser", "sphinx.ext.autodoc", "pages"]
exclude_patterns = ["_build"]
nitpicky = True
nitpick_ignore_regex = [("py:class", ".*")]  # types of torch and others, shapes of tensors
default_role = "code"
toc_object_entries_show_parents = "hide"
add_module_names = False
python_use_unqualified_type_names = True
maximum_signature_line_length = 88

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_preserve_defaults = True

myst_heading_anchors = 3
myst_links_external_new_tab = False
myst_enable_extensions = ["deflist"]

html_theme = "furo"
html_title = f"partavg {release}"
html_copy_source = False
html_show_sphinx = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b62c4", "color-brand-content": "#0b62c4"},
    "dark_css_variables": {"color-brand-primary": "#58a6ff", "color-brand-content": "#58a6ff"},
}
