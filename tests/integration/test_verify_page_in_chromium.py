"""The second verifier's page in a real browser: wrong files, phones, keyboards, axe, no network."""

from __future__ import annotations

from typing import Any

import pytest
from collecting import COLLECTING
from manifest_world import NOW, World, make_world

from sealtrain.manifest.second_verifier import join_page
from sealtrain.manifest.verify import examine

if not COLLECTING:
    from console_world import visited

PAGE: dict[str, str] = {}
"""Where the page is, once it is joined."""
STATE = """({verdict: document.body.dataset.verdict ?? null,
  files: [...document.querySelectorAll("#given li")].map((item) => ({...item.dataset})),
  limits: document.querySelectorAll("#limits li").length})"""
JUDGED = {"until": "document.body.dataset.verdict"}
LISTED = {"until": "document.querySelectorAll('#given li').length"}
pytestmark = [pytest.mark.claim("C690"), pytest.mark.timeout(300), pytest.mark.nightly]


@pytest.fixture(scope="module", autouse=True)
def page(tmp_path_factory: pytest.TempPathFactory) -> None:
    """As ``make verifier`` writes it."""
    path = tmp_path_factory.mktemp("page") / "verify.html"
    path.write_text(join_page(), "utf-8")
    PAGE["url"] = path.as_uri()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def files(world: World, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Paths of files that people give to the page, by name."""
    folder = tmp_path_factory.mktemp("files")
    contents = {
        "manifest.json": world.manifest(),
        "again.json": world.manifest(),
        "trust.yaml": world.trust().to_yaml(),
        "recipe.lock.json": world.locked.lock_bytes,
        "empty.json": b"",
        "other.json": b'{"a": 1}',
        "bytes": bytes(range(256)),
    }
    for name, data in contents.items():
        (folder / name).write_bytes(data)
    with (folder / "long.json").open("wb") as file:
        file.truncate(100_000_000)
    return {path.name: str(path) for path in folder.iterdir()}


def given(files: dict[str, str], *names: str) -> dict[str, Any]:
    return {"of": "#files", "files": [files[name] for name in names]}


def visit(*steps: dict[str, Any], width: int = 1280, dark: bool = False) -> dict[str, Any]:
    return {"url": PAGE["url"], "width": width, "dark": dark, "steps": [*steps], "tabs": 6}


def states(answer: dict[str, Any]) -> list[dict[str, Any]]:
    return [found for found in answer["got"] if isinstance(found, dict)]


def test_a_verdict_is_whole_and_accessible_at_every_width(
    world: World, files: dict[str, str]
) -> None:
    both = given(files, "recipe.lock.json", "trust.yaml", "manifest.json")
    visits = [
        visit(both, JUDGED, {"get": STATE}, width=width, dark=dark)
        for width in (1280, 390)
        for dark in (False, True)
    ]
    report = examine(world.manifest(), world.trust(), artefacts=None, now=NOW)
    for asked, answer in zip(visits, visited(visits, judged=True), strict=True):
        [state] = states(answer)
        assert state["verdict"] == "verified"
        assert state["limits"] == len(report.limits)
        assert [file["kind"] for file in state["files"]] == ["lock", "trust", "manifest"]
        assert [file["used"] for file in state["files"]] == ["false", "true", "true"]
        assert answer["breaches"] == []
        assert answer["faults"] == []
        assert answer["violations"] == []
        assert answer["width"] <= asked["width"]
        assert answer["asked"] == [PAGE["url"]]
        controls = [focus for focus in answer["focus"] if focus["tag"] == "INPUT"]
        assert {focus["id"] for focus in controls} == {"files", "folder"}
        assert all(focus["seen"] for focus in controls)


def test_wrong_files_are_named_and_give_no_verdict(files: dict[str, str]) -> None:
    wrong = {
        "empty.json": "empty",
        "long.json": "too-long",
        "bytes": "binary",
        "other.json": "other",
        "recipe.lock.json": "lock",
    }
    [answer] = visited([visit(given(files, *wrong), LISTED, {"get": STATE}, width=390)])
    [state] = states(answer)
    assert state["verdict"] is None
    assert [file["kind"] for file in state["files"]] == [*wrong.values()]
    assert answer["width"] <= 390


def test_two_manifests_at_once_give_no_verdict_and_the_next_one_does(files: dict[str, str]) -> None:
    [answer] = visited(
        [
            visit(
                given(files, "manifest.json", "again.json", "trust.yaml"),
                LISTED,
                {"get": STATE},
                given(files, "manifest.json"),
                JUDGED,
                {"get": STATE},
                given(files, "again.json", "manifest.json"),
                {"until": "!document.body.dataset.verdict"},
                {"get": STATE},
            )
        ]
    )
    before, after, again = states(answer)
    assert before["verdict"] is None
    assert [file["used"] for file in before["files"]] == ["false", "false", "true"]
    assert after["verdict"] == "verified"
    assert again["verdict"] is None
    assert [file["used"] for file in again["files"]] == ["true", "false", "false"]
