"""The page: complete, self-contained, honest about refusals, and escaped by construction."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from manifest_world import NOW, World
from typer.testing import CliRunner
from world import OWNERS

from sealtrain.base.yamltext import yaml_text
from sealtrain.cli import app
from sealtrain.errors import DataInvalid, UsageError
from sealtrain.manifest.curve import draw_curve
from sealtrain.manifest.markup import Html, join, tag
from sealtrain.manifest.report import render
from sealtrain.manifest.verify import examine

pytestmark = pytest.mark.claim("C29")


class Page(HTMLParser):
    """Elements, attributes and text of a page; fails on elements that do not nest."""

    VOID = frozenset({"meta", "br", "hr"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.scripts: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append(name)
        self.attributes += attributes
        if name not in self.VOID:
            self.open.append(name)

    def handle_startendtag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append(name)
        self.attributes += attributes

    def handle_endtag(self, name: str) -> None:
        assert self.open.pop() == name

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)
        else:
            self.text += data


@pytest.fixture(scope="module")
def page(world: World, honest: bytes) -> str:
    return render(examine(honest, world.trust(), artefacts=world.artefacts, now=NOW))


def test_every_section_is_there_with_its_facts(world: World, page: str) -> None:
    parsed = Page(page)
    for text in (
        "SIMULATED — NOT ATTESTED",
        "Verified",
        "breast-cancer-diagnosis",
        "What was trained",
        "0.9204",
        "Who approved",
        "3 of 3 owners had approved",
        "Datasets and owners",
        "What ran",
        "Evidence",
        "Key releases",
        "Outputs",
        "Every check",
        "What this does not prove",
        *OWNERS,
        *(subject.sha256 for subject in world.subjects),
        world.locked.recipe_hash,
        world.locked.compose_hash,
    ):
        assert text in parsed.text
    assert parsed.elements.count("svg") == 3  # the way of the data for two widths, and the loss
    assert parsed.text.count("✓") == 20


def test_the_files_of_the_base_are_listed_where_the_model_was_opened(
    world: World, honest: bytes, page: str
) -> None:
    found = examine(honest, world.trust(), artefacts=world.artefacts, now=NOW)
    files = {
        "generation_config.json": {"state": "kept", "reason": "unchanged"},
        "<b>.json": {"state": "left-out", "reason": "not-read"},
    }
    listed = Page(render(found, files))
    assert set(Page(page).elements) == set(listed.elements)  # no name is markup
    rows = listed.text.count("generation_config.json"), listed.text.count("<b>.json")
    assert rows == (1, 1)
    assert "generation_config.json" not in page


def reported(world: World, honest: bytes, folder: Path, listed: Any) -> Any:
    """``report --opened`` of a model whose list of its base's files says so."""
    (folder / "manifest.json").write_bytes(honest)
    (folder / "trust.yaml").write_text(yaml_text(world.trust_document()))
    opened = folder / "opened"
    opened.mkdir()
    if listed is not None:
        (opened / "base_files.json").write_text(json.dumps(listed))
    words = [
        "report", folder / "manifest.json", "--trust", folder / "trust.yaml",
        "--artefacts", world.artefacts, "--opened", opened, "--out", folder / "report.html",
    ]  # fmt: skip
    return CliRunner().invoke(app, [*map(str, words)])


@pytest.mark.claim("C585")
def test_report_lists_the_base_files_of_an_opened_model(
    world: World, honest: bytes, tmp_path: Path
) -> None:
    files = {
        "config.json": {"state": "changed", "reason": "written-anew"},
        "chat_template.jinja": {"state": "kept", "reason": "unchanged"},
        "logo.png": {"state": "left-out", "reason": "not-read"},
    }
    done = reported(world, honest, tmp_path, {"files": files})
    assert done.exit_code in (0, 3), done.output  # the page is written whatever the checks say
    page = Page((tmp_path / "report.html").read_text("utf-8"))
    for name, entry in files.items():
        row = name + entry["state"] + entry["reason"].replace("-", " ")
        assert row in page.text.replace("\n", "")


@pytest.mark.claim("C585")
@pytest.mark.parametrize(
    ("listed", "error"),
    [
        (None, UsageError),
        ([], DataInvalid),
        ({"files": {"a": {"state": "kept"}}}, DataInvalid),
        ({"files": {"a": {"state": "lost", "reason": "unchanged"}}}, DataInvalid),
    ],
)
def test_report_refuses_an_opened_folder_without_that_list(
    world: World, honest: bytes, tmp_path: Path, listed: Any, error: type[Exception]
) -> None:
    done = reported(world, honest, tmp_path, listed)
    assert isinstance(done.exception, error)
    assert not (tmp_path / "report.html").exists()


def test_the_page_asks_for_nothing_and_runs_one_script_named_by_its_hash(page: str) -> None:
    parsed = Page(page)
    assert not {"img", "link", "iframe", "object", "form"} & set(parsed.elements)
    names = {name for name, _ in parsed.attributes}
    assert not {name for name in names if name.startswith("on")}
    assert not names & {"src", "href", "srcset", "style", "action"}
    (script,) = parsed.scripts
    assert not re.search(r"url\(|@import|https?://", page.replace(script, ""))
    (policy,) = [value for _, value in parsed.attributes if value and "default-src" in value]
    hashed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy.startswith("default-src 'none'; ")
    assert f"script-src 'sha256-{hashed}'" in policy
    assert "unsafe" not in policy


def test_the_page_holds_what_its_script_checks(world: World, honest: bytes, page: str) -> None:
    held = dict(re.findall(r'id="(self-manifest|self-trust)" hidden="hidden">([^<]*)<', page))
    assert base64.b64decode(held["self-manifest"]) == honest
    assert json.loads(base64.b64decode(held["self-trust"])) == world.trust().to_dict()


def test_a_page_whose_script_did_not_run_says_that_it_is_no_pass(page: str) -> None:
    assert "This is not a pass" in Page(page).text


@pytest.mark.parametrize("opened", ["compose_hash", "app_id"])
def test_a_simulated_run_and_open_trust_are_not_shown_in_green(
    world: World, honest: bytes, opened: str
) -> None:
    trust = world.trust(**{opened: "any"})
    for report in (
        examine(honest, world.trust(), artefacts=None, now=NOW),
        replace(examine(honest, trust, artefacts=None, now=NOW), simulated=False),
    ):
        classes = [value for name, value in Page(render(report)).attributes if name == "class"]
        assert "verdict open" in classes
        assert "verdict accepted" not in classes


def test_a_refused_manifest_is_shown_as_claims_only(world: World, honest: bytes) -> None:
    report = examine(honest, world.trust(recipe_hash="00" * 32), artefacts=None, now=NOW)
    parsed = Page(render(report))
    assert "Refused" in parsed.text
    assert "trust-mismatch" in parsed.text
    assert "Do not rely on it" in parsed.text
    assert "✓ Verified" not in parsed.text
    assert parsed.text.count("✗") == 2


def test_an_unreadable_manifest_still_gives_a_page(world: World) -> None:
    parsed = Page(render(examine(b"{}", world.trust(), artefacts=None, now=NOW)))
    assert "Unreadable manifest" in parsed.text
    assert "manifest-malformed" in parsed.text


def test_what_was_not_established_is_not_shown_as_fact(world: World, honest: bytes) -> None:
    brokers = {
        "signing_keys": ["MCowBQYDK2VwAyEAAAAAAAAAAAAAAAAAAAAAAAAAAAA="],
        "threshold": 1,
        "datasets": "all",
    }
    parsed = Page(render(examine(honest, world.trust(brokers=brokers), artefacts=None, now=NOW)))
    assert "keys released" not in parsed.text
    assert "did not pass" in parsed.text


def test_text_is_escaped_unless_it_is_markup() -> None:
    assert tag("p", "<b>&\"'") == "<p>&lt;b&gt;&amp;&quot;&#x27;</p>"
    assert tag("p", tag("b", "x")) == "<p><b>x</b></p>"
    assert tag("p", title='"><script>') == '<p title="&quot;&gt;&lt;script&gt;"></p>'
    assert join(("<", Html("<br/>"), None, 3)) == "&lt;<br/>3"
    assert "\u202e" not in tag("p", "a\u202eb")
    with pytest.raises(ValueError):
        tag("p onload=x")


def test_a_curve_encloses_its_values_and_breaks_where_one_is_not_finite() -> None:
    svg = draw_curve([(0, 4.0), (10, None), (20, 1.0), (30, 0.5)], label="loss", marks=[20, 99])
    assert svg is not None
    path = re.search(r' d="([^"]+)"', svg)
    assert path is not None
    assert path[1].count("M") == 2
    assert path[1].count("L") == 1
    assert svg.count('class="mark"') == 1
    for x, y in re.findall(r"[ML]([\d.]+) ([\d.]+)", path[1]):
        assert 0 <= float(x) <= 640
        assert 0 <= float(y) <= 230


@pytest.mark.parametrize(
    "points",
    [[], [(0, 1.0)], [(0, None), (1, None)]],
    ids=["nothing", "one value", "nothing finite"],
)
def test_too_little_to_draw_draws_nothing(points: list[tuple[int, float | None]]) -> None:
    assert draw_curve(points, label="loss") is None


@pytest.mark.parametrize("value", [0.0, 1e-30, -3.5, 1e30])
def test_a_flat_curve_can_be_drawn(value: float) -> None:
    svg = draw_curve([(0, value), (1, value)], label="loss")
    assert svg is not None
    assert "nan" not in svg.lower()


def test_a_long_run_is_thinned_and_keeps_its_spike() -> None:
    points = [(step, 1.0) for step in range(50_000)]
    points[31_337] = (31_337, 9.0)
    svg = draw_curve(points, label="loss")
    assert svg is not None
    assert len(svg) < 20_000
    heights = {float(y) for _, y in re.findall(r"[ML]([\d.]+) ([\d.]+)", svg)}
    assert len(heights) == 2
