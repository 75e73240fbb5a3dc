"""A report in a real browser, from disk, offline: it checks itself, or says that it could not."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from manifest_world import World, make_world
from node_judges import node
from programs import need

from sealtrain.manifest.report import render
from sealtrain.manifest.verify import CHECKS, examine

ROOT = Path(__file__).resolve().parents[2]
DRIVER = ROOT / "tests/support/in_chromium.mjs"
NOW = 1_790_003_600
PHONE = 390
pytestmark = [pytest.mark.claim("C169"), pytest.mark.timeout(300), pytest.mark.nightly]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def page(world: World) -> str:
    return render(examine(world.manifest(), world.trust(), artefacts=None, now=NOW))


def shown(page: str, folder: Path, **settings: str) -> dict[str, Any]:
    chromium = need("chromium")["chromium"]
    file = folder / "report.html"
    file.write_text(page, encoding="utf-8")
    done = subprocess.run(
        [node(), str(DRIVER), chromium, str(file)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, **settings},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answer: dict[str, Any] = json.loads(done.stdout)
    assert answer["asked"] == [file.as_uri()]
    return answer


def with_manifest(page: str, manifest: bytes) -> str:
    """The page with another manifest in it, as a forger would write it."""
    written = f'id="self-manifest" hidden="hidden">{base64.b64encode(manifest).decode()}<'
    changed = re.sub('id="self-manifest" hidden="hidden">[^<]*<', written, page)
    assert changed != page
    return changed


def test_a_report_verifies_itself_from_disk_and_offline(page: str, tmp_path: Path) -> None:
    answer = shown(page, tmp_path)
    assert answer["verdict"] == "verified"
    assert [row["check"] for row in answer["rows"]] == [name for name, _, _ in CHECKS]
    assert {row["outcome"] for row in answer["rows"]} == {"passed", "not-done"}
    assert answer["faults"] == []


def test_a_report_over_a_changed_manifest_is_refused(
    world: World, page: str, tmp_path: Path
) -> None:
    forged = world.manifest().replace(b"A", b"B", 1)
    answer = shown(with_manifest(page, forged), tmp_path)
    assert answer["verdict"] == "refused"


def test_a_browser_without_ed25519_says_that_it_could_not_check(page: str, tmp_path: Path) -> None:
    answer = shown(page, tmp_path, WITHOUT="Ed25519")
    assert answer["verdict"] == "not verified"
    outcomes = {row["check"]: row["outcome"] for row in answer["rows"]}
    assert outcomes["signature"] == "not-checked"
    assert "failed" not in outcomes.values()


def test_a_script_that_was_changed_does_not_run(page: str, tmp_path: Path) -> None:
    """Its hash is in the page's policy: the page then shows what it shows without a script."""
    marker = "const module_bytes"
    assert marker in page
    answer = shown(page.replace(marker, " " + marker, 1), tmp_path)
    assert "verdict" not in answer
    assert "not a pass" in answer["shown"]
    assert answer["rows"] == []
    assert answer["faults"] != []


def test_rows_stack_on_a_phone_and_nothing_runs_over_its_edge(page: str, tmp_path: Path) -> None:
    answer = shown(page, tmp_path, SHOWN_AT=str(PHONE))
    assert answer["width"] <= PHONE
    assert answer["stacked"]
    assert not shown(page, tmp_path, SHOWN_AT="1280")["stacked"]
