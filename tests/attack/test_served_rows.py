"""A manifest cannot say of rows served what no guest counts, nor hide whose word it rests on."""

from __future__ import annotations

from typing import Any

import pytest
from manifest_world import FINISHED, NOW, RELEASED, START, World, limits_of, make_world
from run_logs import chained, fields_of
from world import OWNERS, RECIPE, digest

from sealtrain.errors import Refused
from sealtrain.manifest.verify import verify_manifest

pytestmark = pytest.mark.claim("C557")

TRAINED = [digest(f"dataset {owner} biopsies", 16) for owner in OWNERS]
TESTED = digest(f"dataset {OWNERS[0]} biopsies-test", 16)
HONEST = {**dict.fromkeys(TRAINED, 304), TESTED: 9}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    released = {**RECIPE["release_policy"], "logs": "structured"}
    return make_world(tmp_path_factory.mktemp("open"), {**RECIPE, "release_policy": released})


def serving(world: World, *served: dict[str, Any], without: str | None = None) -> bytes:
    """The manifest of a run whose log says so."""
    told = [
        ("run.started", fields_of("run.started"), START),
        ("keys.released", fields_of("keys.released"), RELEASED),
        *(("rows.served", fields, FINISHED) for fields in served),
        ("training.finished", fields_of("training.finished"), FINISHED),
    ]

    def change(facts: dict[str, Any]) -> None:
        facts["run_log"] = chained(facts["run"]["run_id"], told)
        facts["limits"] = [limit for limit in limits_of(facts) if limit["id"] != without]

    return world.manifest(change)


def test_honest_rows_verify_in_one_entry_or_several(world: World) -> None:
    for data in (
        serving(world, HONEST),
        serving(world, *({dataset: rows} for dataset, rows in HONEST.items())),
    ):
        verify_manifest(data, world.trust(), artefacts=world.artefacts, now=NOW)


LIES: dict[str, list[dict[str, Any]]] = {
    "withheld": [dict.fromkeys(HONEST)],
    "one-left-out": [dict.fromkeys(TRAINED, 304)],
    "one-twice": [HONEST, {TESTED: 9}],
    "a-stranger": [HONEST | {"ab" * 16: 1}],
}


@pytest.mark.parametrize("name", LIES)
def test_rows_that_no_guest_writes_are_refused(world: World, name: str) -> None:
    with pytest.raises(Refused) as caught:
        verify_manifest(
            serving(world, *LIES[name]), world.trust(), artefacts=world.artefacts, now=NOW
        )
    assert (caught.value.code, caught.value.check) == ("claim-contradicted", "rows served")
