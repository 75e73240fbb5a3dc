"""The site: every link leads somewhere, and what people look for is two clicks away."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from sealtrain.base.version import own_folders
from sealtrain.errors import SealtrainError
from sealtrain.manifest.second_verifier import join_page
from sealtrain_console.web.assets import assets

pytestmark = [pytest.mark.nightly, pytest.mark.long]

REPOSITORY = Path(__file__).resolve().parents[2]
ADDRESS = re.compile(r"(?:https?:)?//[^\s\"')<>]+")


class Page(HTMLParser):
    """Links and headings' names of a page, and what a browser fetches by itself."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.names: set[str] = set()
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {name: value or "" for name, value in attrs}
        if "id" in named:
            self.names.add(named["id"])
        if tag == "a" and "href" in named:
            self.links.append(named["href"])
        if tag in {"script", "img", "iframe", "source", "object"}:
            self.fetched.extend(named[name] for name in ("src", "data") if name in named)
        if tag == "link" and named.get("rel") not in {
            "index",
            "search",
            "next",
            "prev",
            "canonical",
        }:
            self.fetched.append(named.get("href", ""))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    made = subprocess.run(
        [sys.executable, str(REPOSITORY / "tools/site/pages.py"), "--out", str(out)],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert made.returncode == 0, made.stderr[-4000:]
    return out


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path.read_text("utf-8")) for path in sorted(site.rglob("*.html"))}


def test_every_link_leads_to_a_page_and_a_heading_of_it(
    site: Path, pages: dict[Path, Page]
) -> None:
    broken = []
    for path, page in pages.items():
        for link in page.links:
            if re.match(r"[a-z]+:|#?$", link):
                continue
            file, _, name = link.partition("#")
            target = (path.parent / unquote(file)).resolve() if file else path
            names = pages[target].names if target in pages else {unquote(name)}
            if not target.exists() or (name and unquote(name) not in names):
                broken.append((path.relative_to(site), link))
    assert broken == []
    assert len(pages) > 200


def test_no_page_asks_another_server_for_anything(site: Path, pages: dict[Path, Page]) -> None:
    assert [
        (path.relative_to(site), value)
        for path, page in pages.items()
        for value in page.fetched
        if ADDRESS.match(value)
    ] == []
    styles = "\n".join(path.read_text("utf-8") for path in site.rglob("*.css"))
    assert [
        found for found in re.findall(r"url\(\s*[\"']?([^)\"']+)", styles) if ADDRESS.match(found)
    ] == []
    assert "@import" not in styles


def test_options_in_sentences_keep_both_hyphens(site: Path) -> None:
    for name in ("commands/seal.html", "docs/reference/cli.html"):
        assert "--threshold of them" in (site / name).read_text("utf-8"), name


def test_site_report_and_console_have_one_look(site: Path) -> None:
    """Colours and fonts are in one file; every other style uses them."""
    sources = REPOSITORY / "src/sealtrain"
    look = (sources / "manifest/look.css").read_text("utf-8")
    assert (site / "_static/look.css").read_text("utf-8") == look
    assert 'href="_static/look.css' in (site / "index.html").read_text("utf-8")
    assert assets()["style.css"].content.decode().startswith(look)
    assert look in join_page()
    styles = [
        REPOSITORY / "docs/site/site.css",
        sources / "manifest/report.css",
        REPOSITORY / "verify/page.css",
        *(
            path
            for path in (own_folders()["sealtrain_console"] / "web/static").glob("*.css")
            if "uplot" not in path.name
        ),
    ]
    assert len(styles) == 5
    for path in styles:
        screen = path.read_text("utf-8").partition("@media print")[0]
        assert re.findall(r"#[0-9a-fA-F]{3,8}\b(?![-\w])", screen) == [], path
        assert "sans-serif" not in screen, path


def reached(pages: dict[Path, Page], start: Path, clicks: int) -> set[tuple[Path, str]]:
    """Pages and headings that a reader is at after so many clicks."""
    found, edge = {(start, "")}, {(start, "")}
    for _ in range(clicks):
        following = set()
        for path, _name in edge:
            for link in pages[path].links:
                file, _, name = link.partition("#")
                target = (path.parent / unquote(file)).resolve() if file else path
                if target in pages:
                    following.add((target, unquote(name)))
        edge = following - found
        found |= following
    return found


def test_errors_commands_and_fields_are_two_clicks_away(
    site: Path, pages: dict[Path, Page]
) -> None:
    near = reached(pages, (site / "index.html").resolve(), 2)
    kinds = {SealtrainError}
    while more := {child for kind in kinds for child in kind.__subclasses__()} - kinds:
        kinds |= more
    codes = {kind.code for kind in kinds if kind.__module__ == SealtrainError.__module__}
    assert {
        code for code in codes if ((site / f"errors/{code}.html").resolve(), "") not in near
    } == set()
    reference = (REPOSITORY / "docs/reference/cli.md").read_text("utf-8")
    commands = re.findall(r"^## (sealtrain .+)$", reference, re.MULTILINE)
    page = (site / "docs/reference/cli.html").resolve()
    assert len(commands) > 50
    assert {
        command for command in commands if (page, command.replace(" ", "-")) not in near
    } == set()
    parts = {path.stem for path in (site / "recipe-fields").glob("*.html")} - {"index"}
    assert {"SftRecipe", "Lora", "ReleasePolicy"} <= parts
    assert {
        part for part in parts if ((site / f"recipe-fields/{part}.html").resolve(), "") not in near
    } == set()
