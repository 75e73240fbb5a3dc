"""An owner takes data back from the command line, at every broker, and sees what has it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from broker_site import BrokerSite, broker_site
from manifest_world import OWNERS, identity
from typer.testing import CliRunner

from sealtrain.base.clock import system_clock, to_rfc3339
from sealtrain.cli import app
from sealtrain.consortium.datasets import sign_dataset
from sealtrain.errors import DatasetMismatch, DatasetWithdrawn
from sealtrain.sealing.description import DatasetDescription, ShardInfo
from sealtrain.sealing.stanza import RecipeBinding

A, B, _ = OWNERS
DATASET = "5a" * 16


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerSite]:
    with broker_site(tmp_path_factory.mktemp("withdrawn")) as made:
        yield made


def sealed_folder(site: BrokerSite, owner: str) -> Path:
    """What ``seal`` leaves beside the ciphertext."""
    me = identity(owner).public
    envelope = sign_dataset(
        DatasetDescription(
            dataset_id=DATASET,
            name="biopsies",
            owner_id=me.owner_id,
            owner_name=owner,
            root="11" * 32,
            shards=(ShardInfo(name="shard-00000.sealed", size=70_000, root="11" * 32),),
            records=152,
            tokens=None,
            schema_digest="22" * 32,
            binding=RecipeBinding(
                app_id=site.locked.app_id,
                compose_hash=site.locked.compose_hash,
                owner_id=me.owner_id,
            ),
        ),
        identity(owner).signer,
        sealed_at=to_rfc3339(system_clock() - 60),
    )
    folder = site.folder / "biopsies.sealed"
    folder.mkdir(exist_ok=True)
    (folder / "dataset.json").write_bytes(envelope.to_bytes())
    return folder


def command(site: BrokerSite, *words: str, code: int = 0) -> Any:
    consortium = str(site.folder / "consortium.json")
    done = CliRunner().invoke(app, [*words, "--consortium", consortium, "--json"])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == code, done.output
    return json.loads(done.stdout)


def test_a_dataset_is_withdrawn_at_each_broker_that_answers(site: BrokerSite) -> None:
    folder = sealed_folder(site, A)
    with site.serving("one") as broker:
        with site.owner(broker, A) as mine:
            mine.register_dataset((folder / "dataset.json").read_bytes())
        here = str(site.broker_file(broker))
        gone = str(site.folder / "gone.yaml")
        pin = site.pin.model_copy(update={"url": "http://127.0.0.1:9"})
        Path(gone).write_text(pin.to_yaml())
        key = str(site.folder / f"{A}.identity.json")
        words = ["withdraw", str(folder), "--identity", key, "--yes"]
        told = command(site, *words, "--broker", gone, "--broker", here, code=4)
        lost, taken = told["brokers"]
        assert lost["index"] is None
        assert lost["error"]["code"] == "broker-unreachable"
        assert taken["ledger_holds"]
        (use,) = taken["datasets"]
        assert (use["dataset_id"], use["owner"], use["name"], use["runs"]) == (
            DATASET,
            A,
            "biopsies",
            [],
        )
        assert use["withdrawn_at"]
        with site.owner(broker, A) as mine, pytest.raises(DatasetWithdrawn):
            mine.register_dataset((folder / "dataset.json").read_bytes())
        found = command(site, "log", "uses", DATASET, "--broker", here)
        assert found["ledger"]["holds"]
        assert found["datasets"] == [use]


def test_another_owner_withdraws_nothing_of_it(site: BrokerSite) -> None:
    with site.serving("two") as broker:
        with site.owner(broker, A) as mine:
            mine.register_dataset((sealed_folder(site, A) / "dataset.json").read_bytes())
        key = str(site.folder / f"{B}.identity.json")
        words = ["withdraw", DATASET, "--identity", key, "--yes"]
        with pytest.raises(DatasetMismatch) as caught:
            command(site, *words, "--broker", str(site.broker_file(broker)))
        assert caught.value.exit_code == 3


def test_what_is_no_dataset_is_a_mistake_of_the_caller(site: BrokerSite) -> None:
    key = str(site.folder / f"{A}.identity.json")
    done = CliRunner().invoke(
        app, ["withdraw", "nowhere", "--identity", key, "--broker", "b.yaml", "--yes",
              "--consortium", str(site.folder / "consortium.json")],
    )  # fmt: skip
    assert getattr(done.exception, "exit_code", None) == 2
