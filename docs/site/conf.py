"""Settings of the site, read by Sphinx; ``tools/site/pages.py`` lays out the sources first."""

project = "sealtrain"
extensions = ["myst_parser"]
root_doc = "index"
source_suffix = {".md": "markdown"}
include_patterns = ["**.md"]

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4

html_theme = "furo"
html_title = "sealtrain"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
# The tokens of formats and protocols are no language that a highlighter knows.
highlight_language = "none"
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1f5f4a", "color-brand-content": "#1f5f4a"},
    "dark_css_variables": {"color-brand-primary": "#7fd1b3", "color-brand-content": "#7fd1b3"},
}
