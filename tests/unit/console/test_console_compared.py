"""Runs side by side in the console: each with the word of its own page, no number of a lie."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from collecting import COLLECTING
from manifest_world import NOW, RUN_ID, World, make_world, run_log
from world import RECIPE

from sealtrain.base.yamltext import yaml_text
from sealtrain.manifest.comparison import compare_runs
from sealtrain.manifest.trust import load_trust

if not COLLECTING:
    from sealtrain_console.web.app import console_app
    from sealtrain_console.web.curves import Curves
    from sealtrain_console.web.runs import RUNS
    from sealtrain_console.web.serving import serving
    from sealtrain_console.web.sources import Sources

pytestmark = pytest.mark.claim("C705")
OTHER_ID = "0e" * 16
LYING_ID = "bd" * 16
LIVE_ID = "7e" * 16
FASTER = RECIPE | {"trainer": RECIPE["trainer"] | {"learning_rate": 0.01}}


@dataclass(frozen=True, kw_only=True)
class Folders:
    """Runs of two recipes, one that lies, one that goes on; a trust file of each recipe."""

    runs: Path
    trusts: tuple[Path, Path]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    folder = tmp_path_factory.mktemp("compared")
    first, second = (
        make_world(folder / name, recipe) for name, recipe in (("a", RECIPE), ("b", FASTER))
    )
    runs = folder / "runs"
    leave(runs / "first", first.manifest())
    leave(runs / "second", second.manifest(of_run(OTHER_ID)))
    leave(runs / "lying", first.manifest(brag))
    (runs / "live").mkdir()
    (runs / "live/run.json").write_text(json.dumps(LIVE))
    return Folders(runs=runs, trusts=(trust_of(folder, first), trust_of(folder, second)))


LIVE = {
    "version": 1,
    "run_id": LIVE_ID,
    "lock": "recipe.lock.json",
    "platform": "simulator",
    "guest": "guest.sock",
    "collateral": None,
    "gpu_collateral": None,
    "brokers": [],
    "data": [],
    "base": ".",
}


def leave(folder: Path, manifest: bytes) -> None:
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_bytes(manifest)


def trust_of(folder: Path, world: World) -> Path:
    path = folder / f"{world.locked.compose_hash}.yaml"
    path.write_text(yaml_text(world.trust_document()))
    return path


def of_run(run_id: str) -> Any:
    """A guest that ran under another id, and whose releases are still those of the first."""

    def change(document: dict[str, Any]) -> None:
        document["run"]["run_id"] = run_id
        document["run_log"] = run_log(run_id)

    return change


def brag(document: dict[str, Any]) -> None:
    of_run(LYING_ID)(document)
    document["run"]["steps"] = 123_457
    document["run"]["metrics"] = {"loss": 0.000123}


@contextmanager
def console(folders: Folders, *trusts: Path) -> Iterator[str]:
    sources = Sources(
        consortium=folders.runs / "none.json",
        runs=(folders.runs,),
        trusts=trusts,
        clock=lambda: NOW,
    )
    with serving(console_app([RUNS], {"sources": sources, "curves": Curves()})) as url:
        yield url


def read(url: str) -> tuple[int, str]:
    try:
        with urlopen(Request(url), timeout=30) as answer:  # noqa: S310  # on loopback
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def compared(url: str, *run_ids: str) -> str:
    status, text = read(f"{url}/runs/compared?" + "&".join(f"run={run_id}" for run_id in run_ids))
    assert status == 200, text
    return text


def verdicts(text: str) -> list[str]:
    return re.findall(r'data-verdict="([^"]+)"', text)


def test_the_page_shows_what_the_command_finds(folders: Folders) -> None:
    with console(folders, folders.trusts[0]) as url:
        text = compared(url, RUN_ID)
    found = compare_runs([folders.runs / "first"], [load_trust(folders.trusts[0])], now=NOW)
    assert verdicts(text) == [run.verdict for run in found.runs] == ["verified"]
    for metric, value in found.runs[0].metrics.items():
        assert metric in text
        assert f"{value:.6g}" in text
    assert text.count("<svg") == sum(len(found.runs[0].curve(m)) > 1 for m in found.metrics)
    assert f'href="/runs/{RUN_ID}"' in text


def test_a_run_without_a_trust_file_of_its_recipe_is_grey(folders: Folders) -> None:
    with console(folders) as url:
        text = compared(url, RUN_ID, OTHER_ID)
    assert verdicts(text) == ["not-verified"] * 2
    assert text.count('class="soft" data-verdict') == 2
    assert "trainer.learning_rate" in text


def test_what_is_refused_is_named_and_its_numbers_are_left_out(folders: Folders) -> None:
    with console(folders, folders.trusts[0]) as url:
        text = compared(url, RUN_ID, LYING_ID)
        page = read(f"{url}/runs/{LYING_ID}/checks")[1]
    assert verdicts(text) == ["verified", "refused"]
    assert 'class="verdict refused"' in page  # its own page says the same
    assert "123457" not in text.replace(",", "")
    assert "0.000123" not in text
    assert f'href="/runs/{LYING_ID}">lying</a>' in text


def test_a_lie_does_not_become_grey_by_the_name_of_another_recipe(folders: Folders) -> None:
    """The second run's releases are of the first: it is refused under either trust file."""
    for trusts in (folders.trusts[:1], folders.trusts[1:], folders.trusts):
        with console(folders, *trusts) as url:
            assert verdicts(compared(url, OTHER_ID)) == ["refused"]


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        pytest.param("run=" + "00" * 16, 404, id="unknown"),
        pytest.param("run=" + LIVE_ID, 404, id="goes-on"),
        pytest.param("run=../../etc", 400, id="no-id"),
        pytest.param("&".join(["run=" + RUN_ID] * 101), 400, id="too-many"),
    ],
)
def test_what_is_no_completed_run_is_refused(folders: Folders, asked: str, status: int) -> None:
    with console(folders) as url:
        found, text = read(f"{url}/runs/compared?{asked}")
    assert found == status, text
    assert "data-code" in text


def test_runs_are_chosen_on_the_page_of_all_runs(folders: Folders) -> None:
    with console(folders, folders.trusts[0]) as url:
        for path in ("/runs", "/runs/judged"):
            text = read(url + path)[1]
            chosen = set(re.findall(r'type="checkbox" name="run" value="([^"]+)"', text))
            assert chosen == {RUN_ID, OTHER_ID, LYING_ID}
            assert 'action="/runs/compared" method="get"' in text
        status, text = read(f"{url}/runs/compared")
        assert (status, verdicts(text)) == (200, [])
        assert verdicts(compared(url, RUN_ID, RUN_ID)) == ["verified"]
