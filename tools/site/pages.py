"""Make the site from the Markdown of this repository: ``make docs``.

    python tools/site/pages.py [--out dist/site] [--sources]

The pages are those that are read in the repository. Added are a front page, a page for each
command, each error code and each part of a recipe, lists of the specifications, and the text of
every file that a page links to. A link that leads nowhere is an error. The site asks no other
server for anything, and its
pages and search work from a disk.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from alone import ALONE
from commandpages import command_pages
from drawings import with_drawings
from errors import error_pages
from fields import field_pages
from linked import with_linked_files
from objects import object_pages

REPOSITORY = Path(__file__).resolve().parents[2]
SITE = REPOSITORY / "docs" / "site"
LOOK = REPOSITORY / "src" / "sealtrain" / "manifest" / "look.css"
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CHANGELOG.md",
    "benchmarks/README.md",
    "changes/README.md",
)
FOLDERS = ("docs", "spec", "deploy")
# In the order of the front page.
CHAPTERS = {
    "Guides": [
        "docs/guides/first_hour",
        *(f"docs/guides/first_hour_{role}" for role in ("engineer", "auditor", "operator")),
        *(
            f"docs/guides/{name}"
            for name in (
                "owner",
                "engineer",
                "auditor",
                "operator",
                "walk",
                "console",
                "recovery",
                "networks",
                "install",
                "examples",
                "python",
            )
        ),
        *(
            f"docs/guides/{name}"
            for name in (
                "attestation",
                "rent_a_machine",
                "own_host",
                "nitro_parent",
                "nodes",
                "federated",
                "split",
                "travelling",
                "chain",
            )
        ),
    ],
    "Concepts": [
        f"docs/concepts/{name}"
        for name in (
            "how-a-run-works",
            "architecture",
            "threat-model",
            "privacy",
            "glossary",
            "follow-one-row",
            "follow-one-quote",
            "extend-training",
        )
    ],
}


def main() -> None:
    """Lay out the sources, and have Sphinx make the pages."""
    asked = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    asked.add_argument("--out", type=Path, default=REPOSITORY / "dist" / "site")
    asked.add_argument("--sources", action="store_true", help="lay out the sources there, no more")
    given = asked.parse_args()
    if given.sources:
        lay_out(given.out)
        return
    with tempfile.TemporaryDirectory() as folder:
        sources = Path(folder) / "sources"
        lay_out(sources)
        command = ["-m", "sphinx", "-q", "-W", "--keep-going", "-j", "auto", "-b", "html"]
        made = subprocess.run(  # noqa: S603
            [sys.executable, *command, "-d", f"{folder}/doctrees", str(sources), str(given.out)],
            check=False,
        )
    if made.returncode:
        sys.exit("the site was not made: see the warnings above")
    print(given.out / "index.html")


def lay_out(sources: Path) -> None:
    """Put every page of the site below a folder, with links that lead from page to page."""
    pages = {
        path.relative_to(REPOSITORY).as_posix(): path.read_text("utf-8")
        for path in (
            *(REPOSITORY / name for name in PAGES),
            *(found for name in FOLDERS for found in sorted((REPOSITORY / name).rglob("*.md"))),
        )
        if SITE not in path.parents
    }
    pages |= error_pages(pages["docs/reference/errors.md"])
    pages |= command_pages(pages["docs/reference/cli.md"])
    pages |= field_pages(REPOSITORY / "spec" / "schema" / "recipe.schema.json")
    pages |= object_pages()
    pages["docs/README.md"] = ALONE + pages["docs/README.md"]  # the front page stands for it
    pages["spec/index.md"] = _list_pages("Specifications", "spec", pages)
    pages["index.md"] = _front((SITE / "front.template").read_text("utf-8"), pages)
    pages = with_linked_files(pages, REPOSITORY)
    # A page that draws by itself would bring a program of others along.
    pages = {name: with_drawings(text) for name, text in pages.items()}
    for name, text in pages.items():
        path = sources / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    for picture in (*REPOSITORY.glob("docs/**/*.svg"), *REPOSITORY.glob("docs/**/*.png")):
        path = sources / picture.relative_to(REPOSITORY)
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(picture, path)
    (sources / "_static").mkdir()
    for style in (SITE / "site.css", LOOK):
        shutil.copy(style, sources / "_static")
    shutil.copy(SITE / "conf.py", sources)


def title_of(text: str) -> str:
    """The first heading of a page."""
    return next(line[2:].strip() for line in text.splitlines() if line.startswith("# "))


def _list_pages(title: str, folder: str, pages: dict[str, str]) -> str:
    names = sorted(name for name in pages if Path(name).parent == Path(folder))
    # A folder below has a page of its own, such as that of the model.
    names += sorted(name for name in pages if Path(name).parent.parent == Path(folder))
    below = [Path(name).relative_to(folder).as_posix() for name in names]
    lines = [f"- [{title_of(pages[f'{folder}/{name}'])}]({name})" for name in below]
    tree = _tree([name.removesuffix(".md") for name in below])
    return "\n".join([f"# {title}", "", *lines, "", tree])


def _front(text: str, pages: dict[str, str]) -> str:
    """The front page with its chapters; every page of the site is in one of their trees."""
    guides = CHAPTERS["Guides"][:5]
    walk = [
        f"{number}. [{title_of(pages[f'{name}.md'])}]({name}.md)"
        for number, name in enumerate(guides, 1)
    ]
    reference = sorted(
        name.removesuffix(".md")
        for name in pages
        if name.startswith(("docs/reference/", "deploy/")) or name in PAGES
    )
    decisions = sorted(name.removesuffix(".md") for name in pages if "/decisions/" in name)
    chapters = {
        **CHAPTERS,
        "Reference": [
            "commands/index",
            "errors/index",
            "recipe-fields/index",
            "python/index",
            "spec/index",
            *reference,
        ],
        "Decisions": decisions,
    }
    trees = [_tree(names, caption) for caption, names in chapters.items()]
    parts = {
        "{{walk}}": "\n".join(walk),
        "{{hardware}}": _hardware(pages["docs/reference/platforms.md"]),
        "{{contents}}": "\n".join(trees),
    }
    for name, part in parts.items():
        text = text.replace(name, part)
    return text


def platforms_run(page: str) -> dict[str, bool]:
    """Whether a training ran on each platform, the simulator aside.

    Args:
        page: ``docs/reference/platforms.md``, whose first table says it in its last column.
    """
    table = page.partition("\n| platform |")[2].partition("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    return {row[0]: row[-1].strip() != "no" for row in rows if row[0] != "simulator"}


def _hardware(page: str) -> str:
    """What ran on protected hardware, as the page of platforms says it."""
    ran = platforms_run(page)
    names = [name for name, yes in ran.items() if yes]
    page_of_platforms = "[platforms](docs/reference/platforms.md)"
    if not names:
        return (
            f"**No protected machine ran a training yet.** Of {len(ran)} {page_of_platforms} the "
            "verifier was held against real evidence as that page says; none of them ran one."
        )
    return f"Of {len(ran)} {page_of_platforms} these ran a training: {'; '.join(names)}."


def _tree(names: list[str], caption: str = "") -> str:
    options = [":hidden:", *([f":caption: {caption}"] if caption else [])]
    return "\n".join(["```{toctree}", *options, "", *names, "```", ""])


if __name__ == "__main__":
    main()
