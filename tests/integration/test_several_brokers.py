"""Owners tell every broker, from the command line: real brokers, one of which goes away."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from broker_site import BrokerSite, broker_site
from typer.testing import CliRunner
from world import OWNERS, lock_changed

from sealtrain.base.encoding import to_base64
from sealtrain.cli import app
from sealtrain.client.errors import BrokerUnreachable
from sealtrain.errors import UsageError
from sealtrain.keys.derive import signing_key
from sealtrain.keys.uris import root_secret
from sealtrain.manifest.trust import load_trust
from sealtrain.sealing.rewrap import read_stanzas
from sealtrain.signing.identity import broker_id

pytestmark = pytest.mark.long

NAMES = ("north", "south", "west")


@dataclass
class Three:
    """Three brokers with a root secret each; ``stop`` takes one away."""

    site: BrokerSite
    files: dict[str, Path]
    urls: dict[str, str]
    running: dict[str, ExitStack]

    def stop(self, name: str) -> None:
        self.running.pop(name).close()

    def brokers(self, *names: str) -> list[str]:
        return [word for name in names or NAMES for word in ("--broker", str(self.files[name]))]

    def run(self, *words: str | Path) -> Any:
        return CliRunner().invoke(app, list(map(str, words)))

    def told(self, *words: str | Path, code: int = 0) -> dict[str, Any]:
        done = self.run(*words, "--json")
        assert done.exit_code == code, done.output
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def decide(self, word: str, owner: str, *names: str, code: int = 0) -> dict[str, Any]:
        return self.told(
            word,
            "--deployment",
            self.site.deployment,
            *self.mine(owner),
            *self.brokers(*names),
            "--yes",
            code=code,
        )

    def mine(self, owner: str) -> list[str | Path]:
        return [
            "--identity", self.site.folder / f"{owner}.identity.json",
            "--consortium", self.site.folder / "consortium.json",
        ]  # fmt: skip


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Three]:
    with broker_site(tmp_path_factory.mktemp("three")) as site, ExitStack() as stack:
        made = Three(site, {}, {}, {})
        roots = {name: f"file:{site.folder / f'{name}.secret'}" for name in NAMES}
        keys = {
            name: signing_key(root_secret(root, create=True), "broker").public
            for name, root in roots.items()
        }
        ids = tuple(broker_id(key) for key in keys.values())
        site.locked = lock_changed(site.consortium.consortium_id, ids)
        site.deployment.write_bytes(site.locked.compose_bytes)
        for name, root in roots.items():
            pin = site.pin.model_copy(update={"signing_key": to_base64(keys[name])})
            own = replace(site, pin=pin, fields=site.fields | {"root_secret": root})
            running = made.running[name] = ExitStack()
            stack.callback(running.close)
            client = running.enter_context(own.serving(name))
            made.files[name] = own.broker_file(client, f"{name}.yaml")
            made.urls[name] = client.url
        yield made


@pytest.fixture(scope="module")
def sealed(three: Three) -> Path:
    data, out = three.site.folder / "biopsies.jsonl", three.site.folder / "biopsies.sealed"
    data.write_text('{"prompt": "a", "completion": "b"}\n')
    answer = three.told(
        "seal", data, "--name", "biopsies", *three.mine(OWNERS[0])[:2], "--out", out,
        "--deployment", three.site.deployment, *three.brokers(), "--threshold", "2",
    )  # fmt: skip
    assert answer["registered"] == list(three.urls.values())
    return out


def kinds(folder: Path) -> list[str]:
    return [stanza.kind for stanza in read_stanzas(folder)[1]]


def test_a_dataset_is_sealed_in_shares_and_registered_everywhere(
    three: Three, sealed: Path
) -> None:
    assert kinds(sealed) == ["owner", "share", "share", "share"]
    assert "share" in three.run("inspect", sealed).stdout


@pytest.mark.parametrize(
    ("brokers", "threshold"),
    [(NAMES, None), (NAMES[:1], "2"), (NAMES, "4"), (("north", "north"), "2")],
    ids=["no threshold", "one broker", "more than there are", "one broker twice"],
)
def test_brokers_and_threshold_that_do_not_go_together_seal_nothing(
    three: Three, brokers: tuple[str, ...], threshold: str | None
) -> None:
    data, out = three.site.folder / "check.jsonl", three.site.folder / "never.sealed"
    data.write_text('{"prompt": "a", "completion": "b"}\n')
    done = three.run(
        "seal", data, "--name", "biopsies", *three.mine(OWNERS[0])[:2], "--out", out,
        "--deployment", three.site.deployment, *three.brokers(*brokers),
        *(() if threshold is None else ("--threshold", threshold)),
    )  # fmt: skip
    assert isinstance(done.exception, UsageError)
    assert not out.exists()


def test_a_folder_that_is_not_there_is_no_place_to_seal_to(three: Three) -> None:
    out = three.site.folder / "nowhere" / "check.sealed"
    done = three.run(
        "seal", three.site.folder / "biopsies.jsonl", "--name", "check",
        *three.mine(OWNERS[0])[:2], "--out", out, "--deployment", three.site.deployment,
        *three.brokers("north"),
    )  # fmt: skip
    assert isinstance(done.exception, UsageError)
    assert not out.parent.exists()


def test_an_approval_reaches_every_broker(three: Three) -> None:
    answer = three.decide("approve", OWNERS[0])
    assert list(answer["brokers"]) == list(three.urls.values())
    assert {broker["progress"] for broker in answer["brokers"].values()} == {1}


def test_every_ledger_is_witnessed_and_each_has_a_memory_of_its_own(three: Three) -> None:
    words = ["log", "witness", *three.mine(OWNERS[0]), *three.brokers()]
    assert set(three.told(*words)["brokers"]) == set(three.urls.values())
    memories = list(three.site.folder.glob(f"{OWNERS[0]}.identity.json.ledger-*.json"))
    assert len(memories) == 3
    shared = three.run(*words, "--memory", three.site.folder / "one.json")
    assert isinstance(shared.exception, UsageError)


def test_a_trust_file_names_all_brokers(three: Three) -> None:
    policy, out = three.site.folder / "policy.yaml", three.site.folder / "trust.yaml"
    three.told(
        "trust", "new", "--consortium", three.site.folder / "consortium.json", "--policy", policy,
        "--deployment", three.site.deployment, *three.brokers(), "--threshold", "2", "--out", out,
    )  # fmt: skip
    bare = three.run(
        "trust", "new", "--consortium", three.site.folder / "consortium.json", "--policy", policy,
        "--deployment", three.site.deployment, *three.brokers(), "--out", out,
    )  # fmt: skip
    assert isinstance(bare.exception, UsageError)
    trust = load_trust(out)
    assert (len(trust.brokers.signing_keys), trust.brokers.threshold) == (3, 2)


def test_a_rewrap_replaces_shares_by_one_brokers_whole_key_and_back(
    three: Three, sealed: Path
) -> None:
    me = [*three.mine(OWNERS[0])[:2], "--deployment", three.site.deployment]
    alone = three.told("rewrap", sealed, *me, *three.brokers("north"), "--drop", "share")
    assert (alone["added"], alone["dropped"]) == (1, 3)
    assert kinds(sealed) == ["owner", "recipe"]
    words = [*me, *three.brokers(), "--threshold", "3", "--drop", "recipe"]
    assert three.told("rewrap", sealed, *words)["added"] == 3
    assert kinds(sealed) == ["owner", "share", "share", "share"]


def test_a_broker_that_is_away_keeps_nobody_from_stopping(three: Three) -> None:
    three.stop("south")
    answer = three.decide("revoke", OWNERS[1], code=4)
    assert answer["failed"] == [three.urls["south"]]
    assert {broker["revoked_by"][0] for broker in answer["brokers"].values()} == {OWNERS[1]}
    assert len(answer["brokers"]) == 2
    alone = three.run("revoke", "--deployment", three.site.deployment, *three.mine(OWNERS[2]),
                      *three.brokers("south"), "--yes")  # fmt: skip
    assert isinstance(alone.exception, BrokerUnreachable)
