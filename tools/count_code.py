"""Count lines, files and classes of each distribution, and class names that stand in several files.

    python tools/count_code.py [REVISION]

Of the checkout, or of a revision of it. A line is any line of a Python file; a class is any
``class`` statement; a class name counts once, however many files of all distributions have it.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
HOMES = ("src/", "packages/")
FIGURES = ("lines", "files", "classes")


def python_files(revision: str | None) -> Iterator[tuple[str, str]]:
    """Path and text of each Python file of the product."""
    if revision is None:
        for home in HOMES:
            for file in sorted((REPOSITORY / home).rglob("*.py")):
                yield file.relative_to(REPOSITORY).as_posix(), file.read_text("utf-8")
        return
    for path in _git("ls-tree", "-r", "--name-only", revision, *HOMES).splitlines():
        if path.endswith(".py"):
            yield path, _git("show", f"{revision}:{path}")


def package_of(path: str) -> str:
    """Top-level package of a file."""
    home, *parts = path.split("/")
    return parts[0] if home == "src" else parts[1]


def count(revision: str | None) -> tuple[dict[str, dict[str, int]], list[str]]:
    """Figures of each top-level package of a revision; names of classes in several files."""
    figures: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(FIGURES, 0))
    files_of: dict[str, set[str]] = defaultdict(set)
    for path, text in python_files(revision):
        row = figures[package_of(path)]
        row["lines"] += text.count("\n")
        row["files"] += 1
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                row["classes"] += 1
                files_of[node.name].add(path)
    total = {name: sum(row[name] for row in figures.values()) for name in FIGURES}
    again = sorted(name for name, paths in files_of.items() if len(paths) > 1)
    return {**dict(sorted(figures.items())), "all": total}, again


def _git(*words: str) -> str:
    command = ["git", "-C", str(REPOSITORY), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
    return done.stdout


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("revision", nargs="?", help="the checkout when not given")
    figures, again = count(parser.parse_args().revision)
    for name, row in figures.items():
        print(f"{name:24}{row['lines']:>9,}{row['files']:>7,}{row['classes']:>7,}")
    print(f"class names in more than one file: {len(again)}")


if __name__ == "__main__":
    main()
