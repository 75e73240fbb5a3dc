"""Schedules and the field ``continues``, against vectors that were made without sealtrain."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sealtrain.base.clock import from_rfc3339, to_rfc3339
from sealtrain.base.models import load_model
from sealtrain.errors import DataInvalid
from sealtrain.recipe.duetimes import find_due_of_data, iterate_due_times, name_of, read_due_name
from sealtrain.recipe.schedule import Schedule
from sealtrain.signing.continues import Continues

pytestmark = pytest.mark.claim("C192")
REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = REPOSITORY / "vectors" / "schedule"
DUE = json.loads((FOLDER / "due-times.json").read_text())
DUE_READ = [schedule for schedule in DUE["cases"]["schedules"] if schedule["outcome"] == "ok"]
DUE_REFUSED = [schedule for schedule in DUE["cases"]["schedules"] if schedule["outcome"] != "ok"]
CONTINUES = json.loads((FOLDER / "continues.json").read_text())


def schedule(document: dict[str, Any]) -> Schedule:
    return load_model(Schedule, document, DataInvalid, "schedule")


@pytest.mark.parametrize("case", DUE_READ, ids=lambda case: case["name"])
def test_due_times_and_names_follow_from_a_schedule(case: dict[str, Any]) -> None:
    found = list(iterate_due_times(schedule(case["schedule"]), until=2**40))
    assert [to_rfc3339(due) for due in found] == case["due"]
    names = [name_of(DUE["recipe_hash"], due) for due in found[:3]]
    assert names == case["names"]
    assert [read_due_name(name, DUE["recipe_hash"]) for name in names] == found[:3]


@pytest.mark.parametrize("case", DUE["cases"]["data"], ids=lambda case: case["name"])
def test_data_is_due_when_it_was_registered(case: dict[str, Any]) -> None:
    given = {
        name: None if case[name] is None else from_rfc3339(case[name])
        for name in ("registered", "before")
    }
    found = find_due_of_data(schedule(case["schedule"]), **given)
    assert (None if found is None else to_rfc3339(found)) == case["due"]


@pytest.mark.parametrize("case", DUE_REFUSED, ids=lambda case: case["name"])
def test_what_is_no_schedule_is_refused(case: dict[str, Any]) -> None:
    with pytest.raises(DataInvalid):
        schedule(case["schedule"])


@pytest.mark.parametrize("case", CONTINUES["cases"], ids=lambda case: case["name"])
def test_a_place_in_a_chain_is_read_or_refused(case: dict[str, Any]) -> None:
    document = case["continues"]
    if case["outcome"] == "ok":
        assert load_model(Continues, document, DataInvalid, "continues").to_dict() == document
        return
    with pytest.raises(DataInvalid) as caught:
        load_model(Continues, document, DataInvalid, "continues")
    assert caught.value.code == case["outcome"]


@pytest.mark.nightly
def test_they_are_made_again_byte_for_byte(tmp_path: Path) -> None:
    generator = REPOSITORY / "tools" / "vectorgen" / "schedule.py"
    subprocess.run([sys.executable, str(generator), str(tmp_path)], check=True)
    for name in ("due-times.json", "continues.json"):
        assert (tmp_path / name).read_bytes() == (FOLDER / name).read_bytes()
