"""Runs side by side: no number of a refused manifest, nothing verified that is not, no markup."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from manifest_world import NOW, World, make_world
from typer.testing import CliRunner
from world import RECIPE

from sealtrain.base.yamltext import yaml_text
from sealtrain.cli import app
from sealtrain.errors import UsageError
from sealtrain.manifest.comparison import MAX_RUNS, Comparison, compare_runs
from sealtrain.manifest.comparison_page import render
from sealtrain.manifest.curve import draw_curve, draw_curves
from sealtrain.manifest.errors import ManifestMalformed
from sealtrain.manifest.files import examine_file
from sealtrain.manifest.trust import Trust

pytestmark = pytest.mark.claim("C680")

FASTER = RECIPE | {"trainer": RECIPE["trainer"] | {"learning_rate": 0.01}}


@dataclass(frozen=True)
class Compared:
    """Two runs of recipes that differ in one field, and a lie about the first."""

    first: Path
    second: Path
    lie: Path
    trusts: tuple[Trust, Trust]
    trust_files: tuple[Path, Path]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Compared:
    folder = tmp_path_factory.mktemp("runs")
    worlds = [make_world(folder / name, recipe) for name, recipe in (("a", RECIPE), ("b", FASTER))]
    places, files = [], []
    for world, name in zip(worlds, ("a", "b"), strict=True):
        places.append(_written(folder / f"run-{name}", world.manifest()))
        files.append(folder / f"{name}.yaml")
        files[-1].write_text(yaml_text(world.trust_document()))
    lie = _written(folder / "run-lie", worlds[0].manifest(_brag))
    trusts = (worlds[0].trust(), worlds[1].trust())
    return Compared(places[0], places[1], lie, trusts, (files[0], files[1]))


def _written(folder: Path, manifest: bytes) -> Path:
    folder.mkdir()
    (folder / "manifest.json").write_bytes(manifest)
    return folder


def _brag(predicate: dict[str, Any]) -> None:
    predicate["run"]["steps"] = 123_457
    predicate["run"]["metrics"] = {"loss": 0.000123}


def compared(runs: Compared, places: Sequence[Path]) -> Comparison:
    return compare_runs(places, runs.trusts, now=NOW)


def test_each_run_is_verified_under_the_trust_file_of_its_recipe(runs: Compared) -> None:
    found = compared(runs, [runs.first, runs.second / "manifest.json"])
    assert [run.verdict for run in found.runs] == ["verified", "verified"]
    assert found.accepted
    told = found.to_dict()
    assert all(run["simulated"] for run in told["runs"])
    assert told["runs"][0]["metrics"] == told["runs"][1]["metrics"] != {}
    assert found.differences["trainer.learning_rate"] == (
        str(RECIPE["trainer"]["learning_rate"]),
        "0.01",
    )


def test_a_refused_manifest_adds_no_number(runs: Compared) -> None:
    found = compared(runs, [runs.first, runs.lie])
    lie = found.runs[1]
    assert (lie.verdict, lie.predicate, found.accepted) == ("refused", None, False)
    assert lie.code is not None
    for text in (json.dumps(found.to_dict()), render(found, now=NOW)):
        assert "123457" not in text.replace(",", "")
        assert "0.000123" not in text
        assert lie.code in text


def test_a_manifest_of_another_recipe_is_refused(runs: Compared) -> None:
    found = compare_runs([runs.second], runs.trusts[:1], now=NOW)
    assert [run.verdict for run in found.runs] == ["refused"]


def test_without_a_trust_file_nothing_is_called_verified(runs: Compared) -> None:
    found = compare_runs([runs.first, runs.lie])
    assert {run.verdict for run in found.runs} == {"not-verified"}
    assert "123,457" in render(found, now=NOW)  # as the file claims, and the page says so


def test_the_page_loads_nothing_and_shows_no_value_as_markup(tmp_path: Path) -> None:
    hostile = make_world(tmp_path / "w", RECIPE)
    place = _written(tmp_path / "run", hostile.manifest(_name_markup))
    text = render(compare_runs([place]), now=NOW)
    assert "<script" not in text
    assert "default-src 'none'" in text.replace("&#x27;", "'")
    assert "http://" not in text
    assert "https://" not in text


def _name_markup(predicate: dict[str, Any]) -> None:
    predicate["recipe"]["lock"]["recipe"]["name"] = "<script>alert(1)</script>"
    predicate["recipe"]["lock"]["recipe"]["</td><b>"] = {"<i>": "</table>"}


def test_runs_are_named_once_each_and_not_without_end(runs: Compared) -> None:
    with pytest.raises(UsageError, check=carries(check="runs")):
        compare_runs([runs.first, runs.first / "manifest.json"])
    with pytest.raises(UsageError, check=carries(check="runs")):
        compare_runs([runs.first] * (MAX_RUNS + 1))
    with pytest.raises(ManifestMalformed):
        compare_runs([runs.trust_files[0]])


def test_lines_share_their_axes(runs: Compared) -> None:
    alone = draw_curves([[(0, 1.0), (10, 0.5)], [(5, 9.0)]], label="loss")
    both = draw_curves([[(0, 1.0), (10, 0.5)], [(0, 4.0), (20, None), (40, 2.0)]], label="loss")
    assert alone is not None
    assert both is not None
    assert (alone.count("<path"), both.count("<path")) == (1, 2)
    assert "run-0" in alone
    assert "run-1" not in alone
    assert draw_curves([[(0, 1.0)], []], label="loss") is None


def called(*words: object) -> tuple[int, Any]:
    done = CliRunner().invoke(app, ["run", "compare", *map(str, words), "--json"])
    return done.exit_code, json.loads(done.stdout)


def test_runs_are_verified_without_loading_a_client_of_any_network(runs: Compared) -> None:
    words = ["run", "compare", runs.first, "--trust", runs.trust_files[0]]
    code = (
        "import runpy, sys\n"
        f"sys.argv = ['sealtrain', *{[str(word) for word in words]!r}]\n"
        "try:\n    runpy.run_module('sealtrain', run_name='__main__')\n"
        "except SystemExit as done:\n    assert not done.code\n"
        "print(sorted({'httpx2', 'sealtrain.base.http', 'torch'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.splitlines()[-1] == "[]"
    assert "verified" in done.stdout


def test_the_command_shows_what_was_chosen_and_ends_by_what_was_found(
    runs: Compared, tmp_path: Path
) -> None:
    trust = [word for path in runs.trust_files for word in ("--trust", path)]
    page = tmp_path / "page.html"
    code, told = called(runs.first, runs.second, "--out", page)
    assert (code, told["page"]) == (0, str(page))
    assert page.stat().st_mode & 0o777 == 0o600
    code, told = called(runs.first, runs.lie, *trust)
    assert (code, told["accepted"]) == (3, False)
    done = CliRunner().invoke(app, ["run", "compare", str(runs.first), "--metric", "no-such"])
    assert isinstance(done.exception, UsageError)
    assert (done.exception.check, done.exception.exit_code) == ("--metric", 2)


def test_the_table_has_a_line_for_each_run(runs: Compared, world: World) -> None:
    done = CliRunner().invoke(app, ["run", "compare", str(runs.first), str(runs.second)])
    assert done.exit_code == 0, done.output
    ids = [world.facts["run"]["run_id"][:8]] * 2
    assert [line[:8] for line in done.stdout.splitlines()[1:3]] == ids


def test_values_near_the_largest_are_left_out_of_a_drawing() -> None:
    huge = [(0, 1.0), (1, 1.7e308), (2, -1.7e308), (3, 2.0)]
    drawn = draw_curves([huge, [(0, 3.0), (3, 1.0)]], label="loss")
    assert drawn is not None
    assert drawn == draw_curves([[(0, 1.0), (1, None), (2, None), (3, 2.0)], [(0, 3.0), (3, 1.0)]],
                                label="loss")  # fmt: skip
    assert draw_curve([(0, 1.7e308), (1, -1.7e308)], label="loss") is None


def test_a_manifest_that_is_none_is_named_by_its_place(runs: Compared, tmp_path: Path) -> None:
    broken = _written(tmp_path / "broken", b"{")
    with pytest.raises(ManifestMalformed) as caught:
        compare_runs([runs.first, broken])
    assert str(broken) in str(caught.value)


def test_a_runs_folder_is_verified_as_its_manifest_is(runs: Compared) -> None:
    found = examine_file(runs.first, runs.trusts[0], artefacts=None, now=NOW)
    named = examine_file(runs.first / "manifest.json", runs.trusts[0], artefacts=None, now=NOW)
    assert (found.refusal, found.digest) == (None, named.digest)
