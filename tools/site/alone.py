"""How a page says that links lead to it, and no list in the margin."""

ALONE = "---\norphan: true\n---\n\n"
