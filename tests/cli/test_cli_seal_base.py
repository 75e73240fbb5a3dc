"""``seal --base``: the recipe's own base model judges records before anything is sealed."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bad_data import LONG, PAIRED, Rows
from broker_site import BrokerSite, broker_site
from language_world import write_base
from training_world import LLAMA
from typer.testing import CliRunner
from world import OWNERS, RECIPE, locked_in

from sealtrain.cli import app
from sealtrain.errors import DataInvalid, SealtrainError
from sealtrain.recipe.errors import EnvironmentChanged, ModelInvalid

pytestmark = pytest.mark.claim("C579")

A = OWNERS[0]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerSite]:
    with broker_site(tmp_path_factory.mktemp("seal-base")) as made, made.serving("state") as client:
        made.broker_file(client)
        yield made


@pytest.fixture(scope="module")
def engineer(site: BrokerSite) -> Path:
    """A recipe with a base model beside it, and its deployment document."""
    folder = site.folder / "engineer"
    write_base(folder / "base", LLAMA)
    recipe = copy.deepcopy(RECIPE) | {"model": {"path": "base"}, "peft": None}
    recipe["datasets"] = [dataset for dataset in recipe["datasets"] if dataset["role"] == "train"]
    recipe["trainer"]["max_length"] = 48
    recipe["release_policy"]["metrics"] = ["loss"]
    locked = locked_in(
        folder,
        recipe,
        consortium_id=site.consortium.consortium_id,
        brokers=(site.pin.broker_id,),
    )
    (folder / "app-compose.json").write_bytes(locked.compose_bytes)
    return folder


def seal(site: BrokerSite, engineer: Path, folder: Path, rows: Rows, base: Path | None) -> Any:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = [
        "seal", folder / "rows.jsonl", "--name", "biopsies", "--out", folder / "rows.sealed",
        "--identity", site.folder / f"{A}.identity.json", "--broker", site.folder / "broker.yaml",
        "--deployment", engineer / "app-compose.json", "--no-register", "--json",
        *([] if base is None else ["--base", base]),
    ]  # fmt: skip
    return CliRunner().invoke(app, [*map(str, words)])


def test_records_that_teach_something_are_sealed(
    site: BrokerSite, engineer: Path, tmp_path: Path
) -> None:
    done = seal(site, engineer, tmp_path, [*PAIRED, LONG], engineer)
    assert done.exit_code == 0, done.output
    assert (tmp_path / "rows.sealed" / "dataset.json").is_file()


def refused(done: Any, folder: Path, error: type[SealtrainError]) -> SealtrainError:
    assert isinstance(done.exception, error), done.output
    assert [path.name for path in folder.iterdir()] == ["rows.jsonl"]
    return done.exception


def test_records_that_teach_nothing_are_not_sealed(
    site: BrokerSite, engineer: Path, tmp_path: Path
) -> None:
    done = seal(site, engineer, tmp_path, [LONG] * 4, engineer)
    assert refused(done, tmp_path, DataInvalid).check == "records"
    # Without the base model nothing can say so yet.
    assert seal(site, engineer, tmp_path, [LONG] * 4, None).exit_code == 0


def test_another_base_model_than_the_lock_names_judges_nothing(
    site: BrokerSite, engineer: Path, tmp_path: Path
) -> None:
    other = write_base(tmp_path / "base", LLAMA | {"intermediate_size": 16}).parent
    mine = tmp_path / "mine"
    mine.mkdir()
    refused(seal(site, engineer, mine, PAIRED, other), mine, EnvironmentChanged)
    refused(seal(site, engineer, mine, PAIRED, mine), mine, ModelInvalid)
