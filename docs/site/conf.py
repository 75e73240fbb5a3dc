"""Settings of the site, read by Sphinx; ``tools/site/pages.py`` lays out the sources first."""

project = "sealtrain"
extensions = ["myst_parser"]
root_doc = "index"
source_suffix = {".md": "markdown"}
include_patterns = ["**.md"]

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4

# Quotes are set as printers do; two hyphens are those of an option, and no dash.
smartquotes_action = "qe"

html_theme = "furo"
html_title = "sealtrain"
html_static_path = ["_static"]
html_css_files = ["look.css", "site.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
# The tokens of formats and protocols are no language that a highlighter knows.
highlight_language = "none"
