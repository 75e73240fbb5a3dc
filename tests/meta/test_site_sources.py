"""The site's sources and README: each page has a place, drawings are drawn, no machine too many."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
TREE = re.compile(r"```\{toctree\}\n(.*?)```", re.DOTALL)


@pytest.fixture(scope="module")
def tools() -> None:
    folder = str(REPOSITORY / "tools/site")
    if folder not in sys.path:
        sys.path.append(folder)


@pytest.fixture(scope="module")
def sources(tools: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Markdown of the site by its name."""
    from pages import lay_out

    folder = tmp_path_factory.mktemp("site") / "sources"
    lay_out(folder)
    return {
        path.relative_to(folder).as_posix(): path.read_text("utf-8")
        for path in folder.rglob("*.md")
    }


def test_every_page_is_in_a_tree_or_says_that_it_is_in_none(sources: dict[str, str]) -> None:
    listed = {"index.md"}
    for name, text in sources.items():
        for tree in TREE.findall(text):
            entries = [line for line in tree.splitlines() if line and not line.startswith(":")]
            listed |= {f"{Path(name).parent / entry}.md".removeprefix("./") for entry in entries}
    orphans = {name for name, text in sources.items() if text.startswith("---\norphan: true")}
    assert sources.keys() - listed - orphans == set()
    assert listed - sources.keys() == set()


def test_drawings_are_drawn_when_the_site_is_made(sources: dict[str, str]) -> None:
    assert [name for name, text in sources.items() if "```mermaid" in text] == []
    page = sources["docs/concepts/architecture.md"]
    [picture] = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert "\n\n" not in picture  # or Markdown would end it there
    drawn = ElementTree.fromstring(picture)  # noqa: S314  # our own
    width, height = map(float, drawn.attrib["viewBox"].split()[2:])
    boxes = [
        tuple(float(box.attrib[side]) for side in ("x", "y", "width", "height"))
        for box in drawn.iter("rect")
    ]
    written = (REPOSITORY / "docs/concepts/architecture.md").read_text("utf-8")
    nodes = re.findall(r"^  \w+\(?\[", written, re.MULTILINE)
    assert len(boxes) == len(nodes) > 10
    for at, (x, y, wide, high) in enumerate(boxes):
        assert 0 <= x <= width - wide
        assert 0 <= y <= height - high
        for left, top, wide_too, high_too in boxes[at + 1 :]:
            beside = left >= x + wide or left + wide_too <= x
            assert beside or top >= y + high or top + high_too <= y
    assert width <= 460  # more is too small to read on a phone


@pytest.mark.parametrize(
    "line", ["graph LR", "flowchart TD\n  a{choice}", "flowchart TD\n  a[b]\n  a --> c"]
)
def test_a_drawing_that_is_not_drawn_here_ends_the_build(line: str, tools: None) -> None:
    from drawings import DrawingUnknown, svg

    with pytest.raises(DrawingUnknown):
        svg(line)


def test_commands_and_fields_have_pages_under_what_people_want(sources: dict[str, str]) -> None:
    commands = re.findall(r"^## sealtrain (.+)$", sources["docs/reference/cli.md"], re.MULTILINE)
    index = sources["commands/index.md"]
    for name in commands:
        page = f"{name.replace(' ', '-')}.md"
        assert f"commands/{page}" in sources
        assert f"]({page})" in index
    fields = sources["recipe-fields/index.md"]
    wished, _, _ = fields.partition("## Every field by its name")
    parts = {Path(name).name for name in sources if name.startswith("recipe-fields/")}
    assert {part for part in parts - {"index.md"} if wished.count(f"]({part})") != 1} == set()


@pytest.mark.claim("C693")
def test_readme_and_front_page_name_no_hardware_that_ran_nothing(
    tools: None, sources: dict[str, str]
) -> None:
    from pages import platforms_run

    ran = platforms_run((REPOSITORY / "docs/reference/platforms.md").read_text("utf-8"))
    assert len(ran) > 8
    readme = (REPOSITORY / "README.md").read_text("utf-8")
    status = readme.partition("## Status")[2].partition("\n## ")[0]
    rows = [line.split("|")[1:3] for line in status.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == 5
    [hardware] = [today.strip() for part, today in rows if "confidential hardware" in part]
    assert (hardware == "**not yet**") == (not any(ran.values()))
    front = sources["index.md"]
    assert [name for name, yes in ran.items() if yes != (name in front)] == []


def test_readmes_picture_says_in_words_what_it_shows() -> None:
    readme = (REPOSITORY / "README.md").read_text("utf-8")
    shown = re.findall(r"!\[([^\]]+)\]\(([^)]+)\)", readme)
    assert shown
    for words, path in shown:
        picture = ElementTree.parse(REPOSITORY / path).getroot()  # noqa: S314  # our own
        assert len(words) > 40
        assert picture.attrib["role"] == "img"
        assert [part.tag.rpartition("}")[2] for part in picture][:2] == ["title", "desc"]
