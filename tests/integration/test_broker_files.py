"""From the command line: a broker proves which one it is, and its file says so from then on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from broker_site import BrokerSite, broker_site
from typer.testing import CliRunner
from world import lock_changed, signer

from sealtrain.attest.errors import ComposeHashMismatch
from sealtrain.base.encoding import to_base64
from sealtrain.cli import app
from sealtrain.client.broker_api import BrokerClient
from sealtrain.client.pin import load_pin
from sealtrain.errors import BrokerNotApproved, SealtrainError, TrustInvalid, UsageError

pytestmark = pytest.mark.claim("C90")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerSite]:
    with broker_site(tmp_path_factory.mktemp("files")) as made:
        yield made


@pytest.fixture(scope="module")
def broker(site: BrokerSite) -> Iterator[BrokerClient]:
    with site.serving("state") as client:
        yield client


def pinned(
    site: BrokerSite, url: str, out: str, *words: str, document: str = "compose.json"
) -> Any:
    return CliRunner().invoke(
        app,
        [
            "broker", "pin", "--url", url, "--broker-deployment", str(site.folder / document),
            "--policy", str(site.folder / "policy.yaml"), "--out", str(site.folder / out),
            *words, "--json",
        ],
    )  # fmt: skip


def refused(done: Any, error: type[SealtrainError], out: Path) -> None:
    assert isinstance(done.exception, error), done.output
    assert not out.exists()


def test_a_broker_file_holds_the_key_that_the_broker_proved(
    site: BrokerSite, broker: BrokerClient
) -> None:
    done = pinned(site, broker.url, "proved.yaml")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["broker_id"] == site.pin.broker_id
    assert told["simulated"]
    found = load_pin(site.folder / "proved.yaml")
    assert (found.url, found.key) == (broker.url, site.pin.key)
    assert found.compose_hash == site.pin.compose_hash


def test_a_broker_that_runs_something_else_gets_no_file(
    site: BrokerSite, broker: BrokerClient
) -> None:
    (site.folder / "reviewed.json").write_text('{"name": "another"}')
    done = pinned(site, broker.url, "never.yaml", document="reviewed.json")
    refused(done, ComposeHashMismatch, site.folder / "never.yaml")


def test_a_key_known_by_another_way_is_written_without_asking(site: BrokerSite) -> None:
    key = to_base64(signer("told by voice").public)
    done = pinned(site, "http://127.0.0.1:9", "offline.yaml", "--signing-key", key)
    assert done.exit_code == 0, done.output
    assert load_pin(site.folder / "offline.yaml").signing_key == key


@pytest.mark.parametrize("key", ["", "AAAA", "no base64", to_base64(bytes(33))])
def test_what_is_no_key_is_not_written(site: BrokerSite, key: str) -> None:
    done = pinned(site, "http://127.0.0.1:9", "never.yaml", "--signing-key", key)
    refused(done, UsageError, site.folder / "never.yaml")


def test_a_file_of_an_older_version_names_no_broker(site: BrokerSite) -> None:
    document = site.pin.to_dict() | {"version": 1}
    del document["signing_key"]
    path = site.folder / "older.yaml"
    path.write_text(yaml.safe_dump(document))
    with pytest.raises(TrustInvalid):
        load_pin(path)


def test_an_owner_sees_which_brokers_a_recipe_names_and_where_they_are(
    site: BrokerSite, broker: BrokerClient, tmp_path: Path
) -> None:
    file, stranger = site.broker_file(broker, "shown.yaml"), "ab" * 32
    locked = lock_changed(site.consortium.consortium_id, (site.pin.broker_id, stranger))
    (tmp_path / "two.json").write_bytes(locked.compose_bytes)
    words = [
        "--identity", str(site.folder / "hospital-a.identity.json"),
        "--consortium", str(site.folder / "consortium.json"), "--broker", str(file),
    ]  # fmt: skip
    approve = [*words, "--unpinned", "--yes"]
    done = CliRunner().invoke(
        app, ["approve", "--deployment", str(tmp_path / "two.json"), *approve]
    )
    assert done.exit_code == 0, done.output
    shown = [line.split() for line in done.stderr.splitlines()]
    assert ["broker", site.pin.broker_id, broker.url] in shown
    assert any(line[:2] == ["broker", stranger] and broker.url not in line for line in shown)

    other = lock_changed(site.consortium.consortium_id, (stranger,))
    (tmp_path / "other.json").write_bytes(other.compose_bytes)
    size = len(broker.ledger_entries())
    done = CliRunner().invoke(
        app, ["approve", "--deployment", str(tmp_path / "other.json"), *approve]
    )
    assert isinstance(done.exception, BrokerNotApproved)
    assert len(broker.ledger_entries()) == size
    # Stopping is always possible, at every broker.
    done = CliRunner().invoke(
        app, ["revoke", "--deployment", str(tmp_path / "other.json"), *words, "--yes"]
    )
    assert done.exit_code == 0, done.output
