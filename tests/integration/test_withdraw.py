"""An owner takes data back from the command line, at every broker, and sees what has it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from broker_site import BrokerSite, broker_site
from typer.testing import CliRunner
from world import OWNERS, signed_dataset

from sealtrain.base.clock import system_clock
from sealtrain.cli import app
from sealtrain.consortium.errors import DatasetMismatch
from sealtrain.release.errors import DatasetWithdrawn
from sealtrain.signing.dsse import Envelope

A, B, _ = OWNERS
DATASET = "5a" * 16


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerSite]:
    with broker_site(tmp_path_factory.mktemp("withdrawn")) as made:
        yield made


def sealed_folder(site: BrokerSite, owner: str) -> Path:
    """What ``seal`` leaves beside the ciphertext."""
    envelope = signed_dataset(site.locked, owner, sealed_at=system_clock() - 60, dataset_id=DATASET)
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
            mine.hand_in("dataset", Envelope.from_bytes((folder / "dataset.json").read_bytes()))
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
            mine.hand_in("dataset", Envelope.from_bytes((folder / "dataset.json").read_bytes()))
        found = command(site, "log", "uses", DATASET, "--broker", here)
        assert found["ledger"]["holds"]
        assert found["datasets"] == [use]


def test_another_owner_withdraws_nothing_of_it(site: BrokerSite) -> None:
    with site.serving("two") as broker:
        with site.owner(broker, A) as mine:
            mine.hand_in(
                "dataset",
                Envelope.from_bytes((sealed_folder(site, A) / "dataset.json").read_bytes()),
            )
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
