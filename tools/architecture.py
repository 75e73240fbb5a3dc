"""Draw the import graph into docs/concepts/architecture.md: packages, and which needs which.

    python tools/architecture.py [--check]

An arrow leads from a package to one that it imports while it runs. Arrows that follow from others
are left out (the transitive reduction), so that what is left fits on a page. The texts are the
first sentences of the packages' docstrings.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import grimp

from sealtrain.base.version import PACKAGES, own_folders

PAGE = Path(__file__).resolve().parents[1] / "docs" / "concepts" / "architecture.md"
BEGIN = "<!-- drawn by tools/architecture.py -->"
END = "<!-- end of the drawing -->"
CORE = "sealtrain"
_LEFT_OUT = {CORE, f"{CORE}.__main__", f"{CORE}.errors"}  # everything imports errors

Graph = dict[str, set[str]]


def graph() -> Graph:
    """Packages, each with those that it imports."""
    built = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=True)
    found: Graph = {}
    for module in built.modules:
        package = package_of(module)
        needed = {package_of(name) for name in built.find_modules_directly_imported_by(module)}
        found.setdefault(package, set()).update(needed - {package})
    return {
        package: needed - _LEFT_OUT for package, needed in found.items() if package not in _LEFT_OUT
    }


def package_of(module: str) -> str:
    """Top-level package of a module; within the core, the package below it."""
    first, _, rest = module.partition(".")
    return f"{CORE}.{rest.partition('.')[0]}" if first == CORE and rest else first


def reached(found: Graph, start: str) -> set[str]:
    """Every package that ``start`` needs, itself left out."""
    seen: set[str] = set()
    pending = list(found[start])
    while pending:
        package = pending.pop()
        if package not in seen:
            seen.add(package)
            pending += found[package]
    return seen


def reduced(found: Graph) -> Graph:
    """The same graph without arrows that follow from others.

    Raises:
        SystemExit: Packages import each other in a circle, which no drawing could hide.
    """
    below = {package: reached(found, package) for package in found}
    circle = sorted(package for package in found if package in below[package])
    if circle:
        raise SystemExit(f"these packages import each other: {', '.join(circle)}")
    return {
        package: {
            needed
            for needed in found[package]
            if not any(needed in below[other] for other in found[package])
        }
        for package in found
    }


def drawing() -> str:
    """The Mermaid text of the graph, and a line for each package."""
    arrows = reduced(graph())
    lines = ["```mermaid", "flowchart TD"]
    lines += [f"  {_node(package)}[{_short(package)}]" for package in sorted(arrows)]
    lines += [
        f"  {_node(package)} --> {_node(needed)}"
        for package in sorted(arrows)
        for needed in sorted(arrows[package])
    ]
    lines += ["```", "", "| package | what it is |", "|---|---|"]
    lines += [f"| `{_short(package)}` | {_first_sentence(package)} |" for package in _order(arrows)]
    return "\n".join(lines)


def _order(arrows: Graph) -> Iterator[str]:
    """From what people call to what everything stands on."""
    depth = {package: len(reached(arrows, package)) for package in arrows}
    yield from sorted(arrows, key=lambda package: (-depth[package], package))


def _node(package: str) -> str:
    return package.replace(".", "_")


def _short(package: str) -> str:
    return package.removeprefix(f"{CORE}.")


def _first_sentence(package: str) -> str:
    first, _, rest = package.partition(".")
    folder = own_folders()[first] / rest.replace(".", "/")
    module = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    text = ast.get_docstring(ast.parse(module.read_text("utf-8"))) or ""
    return " ".join(text.partition("\n\n")[0].split()).replace("|", "\\|")


def main() -> None:
    """Rewrite the drawing of the page, or with ``--check`` compare it."""
    page = PAGE.read_text("utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    fresh = f"{before}{BEGIN}\n\n{drawing()}\n\n{END}{after}"
    if page == fresh:
        return
    if "--check" in sys.argv[1:]:
        raise SystemExit(f"{PAGE.name} is stale: run python tools/architecture.py")
    PAGE.write_text(fresh, "utf-8")


if __name__ == "__main__":
    main()
