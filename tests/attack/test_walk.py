"""The walk shows what the code does: it can fail, keeps what it was given, and is asked by its page
alone."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from carrying import carries
from collecting import COLLECTING
from filelock import FileLock
from node_judges import node
from programs import need
from stage import interpreter
from typer.testing import CliRunner
from variants import variants

from sealtrain.cli import app
from sealtrain.cli.programs import SideProgram
from sealtrain.errors import AlreadyExists, DataInvalid, ProtectionMissing, Refused, UsageError
from sealtrain_console.walk.prepared_run import MARKER, Prepared, is_fresh, is_walk
from sealtrain_console.walk.switch import StepOutcome, Switch
from sealtrain_console.walk.table import SWITCHES, play, switch_named
from sealtrain_console.walk_run import prepare_run
from sealtrain_console.web.serving import serving

if not COLLECTING:
    from sealtrain_console.web.app import console_app
    from sealtrain_console.web.walk import WALK

ROOT = Path(__file__).resolve().parents[2]
DRIVER = ROOT / "tests/support/walk_in_chromium.mjs"
SECONDS = 2.0
"""Within which a switch answers on a machine that does nothing else."""
PATIENCE = 10
"""The tests share their machine."""
EACH_TIME = (
    *("seal-bytes", "approve-own-data", "release-once", "train-lease", "verify-signature"),
)
"""Switches that are played for each change, one of each step."""
pytestmark = [
    pytest.mark.long,
    pytest.mark.claim("C213"),
    pytest.mark.slow,
    pytest.mark.timeout(300),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "executable", interpreter())
        return prepare_run(tmp_path_factory.mktemp("walks") / "walk")


class Outcomes(dict[tuple[str, bool], StepOutcome]):
    """What came of switches, on and off, over one run; each is played when it is asked for."""

    def __init__(self, run: Prepared) -> None:
        super().__init__()
        self.run = run

    def __missing__(self, asked: tuple[str, bool]) -> StepOutcome:
        name, off = asked
        self[asked] = play(self.run, switch_named(name), off=off)
        return self[asked]


@pytest.fixture(scope="module")
def outcomes(run: Prepared) -> Iterator[Outcomes]:
    """Switches that are played; afterwards what lay in the run's folder is still the same."""
    before = digests(run.folder)
    yield Outcomes(run)
    assert digests(run.folder) == before


@pytest.fixture(scope="module")
def page(run: Prepared) -> Iterator[str]:
    with serving(console_app([WALK], {"walk": run})) as url:
        yield url


def digests(folder: Path) -> Mapping[str, str]:
    """Every file of a prepared run; the simulated vendor issues its collateral anew at a start."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "collateral.json"
    }


def told(*words: str) -> tuple[int, dict[str, Any], BaseException | None]:
    done = CliRunner().invoke(app, ["walk", *words, "--json"])
    answer: dict[str, Any] = json.loads(done.stdout or "{}")
    return done.exit_code, answer, done.exception


# --- Every switch --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "switch",
    variants(SWITCHES, each_time=list(map(switch_named, EACH_TIME))),
    ids=lambda switch: switch.name,
)
def test_a_step_passes_with_its_protection_and_is_refused_without_it(
    switch: Switch, outcomes: Outcomes
) -> None:
    on, off = outcomes[switch.name, False], outcomes[switch.name, True]
    assert (on.as_promised, on.refusal) == (True, None)
    assert on.passed
    assert (off.as_promised, off.passed) == (True, None)
    assert isinstance(off.refusal, Refused)
    assert off.refusal.exit_code == 3
    assert off.refusal.check
    assert off.stake
    assert max(on.seconds, off.seconds) < SECONDS * PATIENCE


def test_what_came_back_is_told_whole(outcomes: Outcomes) -> None:
    document = outcomes["approve-own-data", True].to_dict()
    assert document["refusal"]["code"] == "approvals-missing"
    assert document["refusal"]["exit_code"] == 3
    assert document["refusal"]["http_status"] == 403
    assert (document["claim"], document["step"]) == ("C45", "approve")
    json.dumps(document)


@pytest.mark.nightly
def test_the_guides_table_is_that_of_a_real_walk(
    outcomes: Outcomes,
) -> None:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        from walk_page import PAGE, table_of, write
    finally:
        sys.path.pop(0)
    found = table_of(outcomes[switch.name, True] for switch in SWITCHES)
    page = PAGE.read_text("utf-8")
    assert write(page, found) == page, "make walk writes it"


# --- A walk that could not fail would show nothing -----------------------------------------------


def test_a_check_that_is_really_gone_is_seen(
    run: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without our own check of inclusion the altered proof passes, and the walk says so."""
    monkeypatch.setattr("sealtrain.signing.merkle.verify_inclusion", lambda *_: None)
    outcome = play(run, switch_named("verify-ledger"), off=True)
    assert (outcome.as_promised, outcome.refusal) == (False, None)
    status, _, error = told("verify-ledger", "--out", str(run.folder))
    assert status == 1
    assert isinstance(error, ProtectionMissing)
    assert (error.check, error.got) == ("verify-ledger", "verify-ledger off")


def test_a_fault_before_the_step_is_no_refusal(run: Prepared, tmp_path: Path) -> None:
    broken = tmp_path / "walk"
    shutil.copytree(run.folder, broken, ignore=lambda *_: ["sealed", "guest.sock"], symlinks=True)
    with pytest.raises(DataInvalid, check=carries(check="seal-bytes")):
        play(Prepared(broken), switch_named("seal-bytes"), off=True)


# --- The command ---------------------------------------------------------------------------------


def test_listing_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    status, answer, _ = told("--list")
    assert status == 0
    assert [switch["switch"] for switch in answer["switches"]] == [
        switch.name for switch in SWITCHES
    ]
    assert all(switch["promise"] for switch in answer["switches"])
    assert list(tmp_path.iterdir()) == []


def test_one_switch_is_played_on_and_off(run: Prepared) -> None:
    status, answer, _ = told("approve-quorum", "--out", str(run.folder))
    assert status == 0
    assert answer["simulated"] is True
    on, off = answer["outcomes"]
    assert (on["switched_off"], on["refusal"]) == (False, None)
    assert (off["refusal"]["code"], off["refusal"]["check"]) == ("approvals-missing", "approvals")


@pytest.mark.parametrize(
    ("words", "check"),
    [(("approve-nothing",), "switch"), (("--list", "--all"), None), (("--all", "seal-root"), None)],
)
def test_what_makes_no_sense_starts_nothing(
    words: tuple[str, ...], check: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    status, _, error = told(*words)
    assert status == 2 or isinstance(error, UsageError)
    assert getattr(error, "check", None) == check
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_no_walk_made_is_left_alone(tmp_path: Path) -> None:
    """A project of an engineer's, and one in which another program wrote a file of that name."""
    for name, content in (
        ("recipe.yaml", "version: 1\n"),
        (MARKER, '{"steps": 5}'),
        (MARKER, "[]"),
    ):
        folder = tmp_path / f"{name}-{len(content)}"
        folder.mkdir()
        (folder / name).write_text(content)
        assert not is_walk(folder)
        with pytest.raises(AlreadyExists):
            prepare_run(folder, anew=True)
        assert (folder / name).read_text() == content
    file = tmp_path / "file"
    file.write_text("a file")
    with pytest.raises(AlreadyExists):
        prepare_run(file)
    assert file.read_text() == "a file"


def test_two_walks_do_not_prepare_one_folder(tmp_path: Path) -> None:
    with FileLock(tmp_path / ".walk.lock"), pytest.raises(AlreadyExists):
        prepare_run(tmp_path / "walk")
    assert not (tmp_path / "walk").exists()


def test_a_run_that_is_half_prepared_old_or_of_another_version_is_not_replayed(
    run: Prepared, tmp_path: Path
) -> None:
    marked = json.loads((run.folder / MARKER).read_text())
    at = marked["prepared_at"]
    assert is_fresh(run.folder, now=at)
    for changed in ({"prepared_at": None}, {"sealtrain": "0.0.0"}, {"prepared_at": at + 60}):
        (tmp_path / MARKER).write_text(json.dumps(marked | changed))
        assert is_walk(tmp_path)
        assert not is_fresh(tmp_path, now=at)
    assert not is_fresh(run.folder, now=at + 30 * 24 * 3600)


# --- The page ------------------------------------------------------------------------------------


def pressed(url: str, path: str, **headers: str) -> httpx2.Response:
    own = {"origin": url, "hx-request": "true"}
    return httpx2.post(f"{url}{path}", headers=own | headers, timeout=60)


def test_the_page_shows_all_switches_on_and_says_that_it_is_simulated(page: str) -> None:
    text = httpx2.get(f"{page}/walk", timeout=60).text
    assert text.count('role="switch"') == text.count('aria-checked="true"') == len(SWITCHES)
    assert "SIMULATED — NOT ATTESTED" in text


def test_a_press_plays_the_step_and_another_one_plays_it_again(page: str) -> None:
    off = pressed(page, "/walk/release-document/off")
    assert off.status_code == 200
    assert 'data-code="compose-hash-mismatch"' in off.text
    assert 'data-claim="C14"' in off.text
    assert off.text.count("<li") == 1
    on = pressed(page, "/walk/release-document/on")
    assert 'data-passed="on"' in on.text
    assert "data-code" not in on.text


def test_without_scripts_a_press_gives_the_whole_page(page: str) -> None:
    answer = httpx2.post(f"{page}/walk/seal-root/off", headers={"origin": page}, timeout=60)
    assert answer.text.count('role="switch"') == len(SWITCHES)
    assert 'data-code="root-mismatch"' in answer.text


def test_no_other_site_presses_a_switch(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("a switch was played")

    monkeypatch.setattr("sealtrain_console.web.walk.play", never)
    path = "/walk/seal-root/off"
    assert pressed(page, path, origin="https://elsewhere.example").status_code == 403
    assert pressed(page, path, **{"sec-fetch-site": "cross-site"}).status_code == 403
    assert pressed(page, path, host="rebound.example").status_code == 403
    assert httpx2.post(f"{page}{path}", timeout=60).status_code == 403
    assert httpx2.get(f"{page}{path}", timeout=60).status_code in (404, 405)


@pytest.mark.parametrize(
    "name", ["%3Cscript%3E", "seal-root%00", "..%2f..%2fetc", "a" * 5000, "seal-root/sideways"]
)
def test_a_name_that_is_no_switch_plays_nothing_and_is_text(page: str, name: str) -> None:
    answer = pressed(page, f"/walk/{name}/off")
    assert 400 <= answer.status_code < 500
    assert "<script>" not in answer.text


def test_the_command_serves_the_page_on_loopback_until_it_is_told_to_end(
    run: Prepared, tmp_path: Path
) -> None:
    words = ("walk", "--out", str(run.folder), "--port", "0")
    with SideProgram("walk", tmp_path, words, answers=False) as served:
        url = served.place("walk ready", within=120)
        assert httpx2.get(f"{url}/walk", timeout=60).status_code == 200
        assert urlsplit(url).hostname == "localhost"
        assert served.end() in (0, -signal.SIGTERM)
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(url, timeout=5)


# --- In a browser --------------------------------------------------------------------------------


def walked(page: str, width: int, hand: str, scheme: str = "light") -> dict[str, Any]:
    chromium = need("chromium")["chromium"]
    done = subprocess.run(
        [node(), str(DRIVER), chromium, f"{page}/walk", str(width), hand],
        capture_output=True,
        text=True,
        check=True,
        timeout=280,
        env={**os.environ, "SCHEME": scheme},
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    assert answer["asked"] == [page]
    assert answer["faults"] == answer["violations"] == answer["doubled"] == []
    assert [row["name"] for row in answer["rows"]] == [switch.name for switch in SWITCHES]
    return answer


def shows_refusals(answer: dict[str, Any], outcomes: Outcomes, width: int) -> None:
    for row in answer["rows"]:
        refusal = outcomes[row["name"], True].refusal
        assert refusal is not None
        shown = row["off"]
        expected = ("false", refusal.code, switch_named(row["name"]).claim)
        assert (shown["checked"], shown["code"], shown["claim"]) == expected
        assert f"check\n{refusal.check}\n" in shown["text"].replace("\n\n", "\n")
        assert shown["wide"] <= width


@pytest.mark.nightly
def test_every_switch_is_pressed_by_keyboard_alone(page: str, outcomes: Outcomes) -> None:
    answer = walked(page, 1280, "keys")
    shows_refusals(answer, outcomes, 1280)
    for row in answer["rows"]:
        assert (row["reached"], row["kept"]) == (True, True)
        assert (row["on"]["checked"], row["on"]["passed"], row["on"]["code"]) == (
            "true",
            "on",
            None,
        )


@pytest.mark.nightly
def test_every_switch_is_pressed_on_a_phone_in_the_dark(page: str, outcomes: Outcomes) -> None:
    shows_refusals(walked(page, 390, "mouse", "dark"), outcomes, 390)
