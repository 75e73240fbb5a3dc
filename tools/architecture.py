"""Draw the import graph into docs/concepts/architecture.md: packages, and which needs which.

    python tools/architecture.py [--check]

The core is one street: a package stands one step above the highest package that it imports while
it runs, so each import leads down. Other top-level packages are drawn beside the street, with
arrows to and from the steps. The texts are the first sentences of the packages' docstrings.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from itertools import pairwise
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


def reach(found: Graph, start: str) -> set[str]:
    """Every package that ``start`` needs, itself left out."""
    seen: set[str] = set()
    pending = list(found[start])
    while pending:
        package = pending.pop()
        if package not in seen:
            seen.add(package)
            pending += found[package]
    return seen


def steps(found: Graph) -> dict[str, int]:
    """The step of every package: 0 where it imports none, else one above the highest it imports.

    Raises:
        SystemExit: Packages import each other in a circle, which no drawing could hide.
    """
    circle = sorted(package for package in found if package in reach(found, package))
    if circle:
        raise SystemExit(f"these packages import each other: {', '.join(circle)}")
    known: dict[str, int] = {}

    def step_of(package: str) -> int:
        if package not in known:
            known[package] = max((1 + step_of(needed) for needed in found[package]), default=0)
        return known[package]

    return {package: step_of(package) for package in sorted(found)}


def street(found: Graph) -> list[str]:
    """The Mermaid text: a node for each step of the core, and one for each package beside it."""
    step_of = steps(found)
    core = {package: step for package, step in step_of.items() if package.startswith(f"{CORE}.")}
    order = sorted(set(core.values()), reverse=True)
    lines = ["```mermaid", "flowchart TD"]
    for step in order:
        names = " · ".join(_short(package) for package in core if core[package] == step)
        lines.append(f"  step{step}[{names}]")
    lines += [f"  step{above} --> step{below}" for above, below in pairwise(order)]
    for room in sorted(set(step_of) - set(core)):
        lines.append(f"  {room}([{room}])")
        highest = max((core[needed] for needed in found[room] if needed in core), default=None)
        lines += [] if highest is None else [f"  {room} -.-> step{highest}"]
        above = {core[package] for package in core if room in found[package]}
        lines += [f"  step{step} -.-> {room}" for step in sorted(above, reverse=True)]
        lines += [f"  {room} -.-> {other}" for other in sorted(found[room] - set(core))]
    return [*lines, "```"]


def drawing() -> str:
    """The Mermaid text of the graph, and a line for each package."""
    found = graph()
    lines = [*street(found), "", "| package | what it is |", "|---|---|"]
    lines += [f"| `{_short(package)}` | {_first_sentence(package)} |" for package in _order(found)]
    return "\n".join(lines)


def _order(found: Graph) -> Iterator[str]:
    """From what people call to what everything stands on."""
    depth = {package: len(reach(found, package)) for package in found}
    yield from sorted(found, key=lambda package: (-depth[package], package))


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
