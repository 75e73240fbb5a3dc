"""A broker's root secret is replaced: what held before holds on, and nobody else names the key."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from broker_site import BrokerSite, broker_site
from carrying import carries
from release_world import release_world
from typer.testing import CliRunner
from world import OWNERS, identity

from sealtrain.base.clock import system_clock
from sealtrain.base.encoding import from_base64, to_base64
from sealtrain.base.secret import Secret
from sealtrain.broker.config import BrokerConfig
from sealtrain.broker.serve import running
from sealtrain.broker.service.keyring import Keyring
from sealtrain.broker.service.rotating import rotate_key
from sealtrain.cli import app
from sealtrain.client.broker_api import BrokerClient
from sealtrain.client.watch import cosign_newest, observe
from sealtrain.errors import LedgerInconsistent, SealtrainError, SignatureInvalid, UsageError
from sealtrain.keys.derive import signing_key
from sealtrain.ledger.audit import Auditor, AuditReport
from sealtrain.ledger.ledger import Ledger
from sealtrain.ledger.reading import audit_stored
from sealtrain.ledger.rotation import read_rotation, rotation_entry, sign_rotation
from sealtrain.ledger.witness import memory
from sealtrain.release.messages import ledger_origin
from sealtrain.sealing.errors import NoStanza
from sealtrain.signing import dsse
from sealtrain.signing.errors import BrokerMismatch, StatementInvalid

pytestmark = [pytest.mark.long, pytest.mark.claim("C68")]

OLD, NEW, OTHER = (Secret(bytes([number]) * 32) for number in (1, 2, 3))
OLD_KEY, NEW_KEY, OTHER_KEY = (signing_key(name, "broker") for name in (OLD, NEW, OTHER))
APP, COMPOSE, OWNER = "a1" * 20, "b1" * 32, "c1" * 32


@pytest.fixture
def site(tmp_path: Path) -> Iterator[BrokerSite]:
    with broker_site(tmp_path) as made:
        for name, secret in (("old", OLD), ("new", NEW), ("other", OTHER)):
            path = tmp_path / name
            path.write_text(secret.reveal().hex() + "\n")
            path.chmod(0o600)
        made.pin = made.pin.model_copy(update={"signing_key": to_base64(OLD_KEY.public)})
        yield made


def config_of(site: BrokerSite, root: str, *former: str) -> BrokerConfig:
    return replace(
        site.config("state"),
        root_secret=f"file:{site.folder / root}",
        former_root_secrets=tuple(f"file:{site.folder / name}" for name in former),
    )


@contextmanager
def serving(site: BrokerSite, root: str, *former: str) -> Iterator[BrokerClient]:
    with running(config_of(site, root, *former)) as url, BrokerClient(url) as client:
        yield client


def log(site: BrokerSite) -> Path:
    return site.state("state") / "ledger.sqlite"


def rotate(site: BrokerSite, old: Secret = OLD, new: Secret = NEW) -> int:
    origin = ledger_origin(site.consortium.consortium_id)
    return rotate_key(log(site), origin, old=old, new=new, now=system_clock())


def look(site: BrokerSite, client: BrokerClient, name: str = "memory") -> bytes:
    """What an owner does each time; the key remembered afterwards."""
    with site.owner(client, "hospital-a") as mine, memory(site.folder / name) as kept:
        observe(client, kept, site.consortium, attest=site.key(client), now=system_clock())
        cosign_newest(
            mine,
            kept,
            owner="hospital-a",
            signer=identity("hospital-a").signer,
            now=system_clock(),
        )
        assert kept.public_key is not None
        return kept.public_key


def audited(site: BrokerSite, key: bytes, *notes: str) -> AuditReport:
    origin = ledger_origin(site.consortium.consortium_id)
    auditor = Auditor(site.consortium, key, origin=origin, checkpoints=notes)
    audit_stored(log(site), auditor, {"origin": origin})
    return auditor.finish()


@pytest.mark.parametrize("former", [("old",), ()], ids=["overlap", "old key gone"])
def test_owners_memories_follow_the_key(site: BrokerSite, former: tuple[str, ...]) -> None:
    with serving(site, "old") as client:
        site.decide(client, "hospital-a")
        assert look(site, client) == OLD_KEY.public
        before = client.ledger_checkpoint()
    rotate(site)
    with serving(site, "new", *former) as client:
        site.decide(client, "hospital-b")
        assert look(site, client) == NEW_KEY.public
        assert look(site, client) == NEW_KEY.public
        after = client.ledger_checkpoint()
    for key in (OLD_KEY.public, NEW_KEY.public):
        report = audited(site, key, before, after)
        assert report.findings == ()
        assert report.checkpoints == 2
        assert not report.unknown


def test_a_memory_follows_several_rotations_at_once(site: BrokerSite) -> None:
    with serving(site, "old") as client:
        site.decide(client, "hospital-a")
        look(site, client)
    rotate(site)
    rotate(site, NEW, OTHER)
    with serving(site, "other") as client:
        assert look(site, client) == OTHER_KEY.public


def test_who_knows_the_old_key_only_still_reads_checkpoints(site: BrokerSite) -> None:
    with serving(site, "old") as client:
        site.decide(client, "hospital-a")
    rotate(site)
    with serving(site, "new", "old") as client:
        note = client.ledger_checkpoint()
    assert audited(site, OLD_KEY.public, note).findings == ()
    assert note.count("— ") == 2


def test_a_rotated_ledger_is_served_by_its_present_key_only(site: BrokerSite) -> None:
    with serving(site, "old") as client:
        site.decide(client, "hospital-a")
    rotate(site)
    for root, former in (("old", ()), ("other", ()), ("new", ("other",)), ("other", ("new",))):
        with pytest.raises(SealtrainError) as caught, serving(site, root, *former):
            pytest.fail("it was served")
        assert isinstance(caught.value, SignatureInvalid | LedgerInconsistent)


def test_a_key_is_rotated_once_and_to_another(site: BrokerSite) -> None:
    with serving(site, "old") as client:
        site.decide(client, "hospital-a")
    with pytest.raises(UsageError):
        rotate(site, OLD, OLD)
    rotate(site)
    with pytest.raises(SignatureInvalid):
        rotate(site)
    with pytest.raises(SignatureInvalid):
        rotate(site, OLD, OTHER)


def test_a_broker_with_another_key_and_no_rotation_is_refused(site: BrokerSite) -> None:
    with serving(site, "old") as client:
        site.decide(client, "hospital-a")
        look(site, client)
    log(site).unlink()
    (site.state("state") / "broker.sqlite").unlink()
    with serving(site, "new") as client:
        with pytest.raises(BrokerMismatch):
            site.decide(client, "hospital-a")
        with pytest.raises(SignatureInvalid):
            look(site, client)
        with pytest.raises(BrokerMismatch):
            look(site, client, "no memory yet")


def test_a_rotation_that_the_ledger_does_not_hold_moves_no_memory(site: BrokerSite) -> None:
    """Who has both keys, and shows a rotation beside another history, gains nothing."""
    with serving(site, "old") as client:
        site.decide(client, "hospital-a")
        site.decide(client, "hospital-b")
        look(site, client)
    for name in ("ledger.sqlite", "broker.sqlite"):
        (site.state("state") / name).unlink()
    origin = ledger_origin(site.consortium.consortium_id)
    with Ledger.open(log(site), origin=origin, signer=OLD_KEY):
        pass
    rotate(site)
    with serving(site, "new", "old") as client:
        for name in ("hospital-a", "hospital-b", "hospital-c"):
            site.decide(client, name)
        with pytest.raises(LedgerInconsistent):
            look(site, client)


def forged(origin: str) -> Iterator[tuple[str, dict[str, Any]]]:
    honest = sign_rotation(origin, old=OLD_KEY, new=NEW_KEY, now=0)
    only_old = replace(honest, signatures=honest.signatures[:1])
    only_new = replace(honest, signatures=honest.signatures[1:])
    twice = replace(honest, signatures=(honest.signatures[0],) * 2)
    stranger = dsse.sign(honest.payload, honest.payload_type, OLD_KEY, OTHER_KEY)
    elsewhere = sign_rotation(origin + "0", old=OLD_KEY, new=NEW_KEY, now=0)
    for name, value in (
        ("old key alone", only_old),
        ("new key alone", only_new),
        ("one key twice", twice),
        ("another key", stranger),
        ("another ledger", elsewhere),
    ):
        yield name, rotation_entry(value)
    yield "another digest", rotation_entry(honest) | {"digest": "00" * 32}
    yield "a field more", rotation_entry(honest) | {"more": 1}


@pytest.mark.parametrize(
    "body", [pytest.param(body, id=name) for name, body in forged("sealtrain/ledger/x")]
)
def test_a_forged_rotation_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises((SignatureInvalid, StatementInvalid)):
        read_rotation(body, origin="sealtrain/ledger/x")


def test_an_audit_names_a_rotation_by_nobody(site: BrokerSite) -> None:
    origin = ledger_origin(site.consortium.consortium_id)
    site.state("state").mkdir()
    with Ledger.open(log(site), origin=origin, signer=OLD_KEY) as ledger:
        strange = sign_rotation(origin, old=OLD_KEY, new=NEW_KEY, now=0)
        ledger.append("rotation", rotation_entry(strange) | {"digest": "00" * 32})
    report = audited(site, OLD_KEY.public)
    assert [finding.check for finding in report.findings] == ["rotation"]


@pytest.mark.parametrize(
    ("sealed_to", "root", "former", "opens"),
    [
        (OLD, NEW, [OLD], True),
        (NEW, NEW, [OLD], True),
        (OLD, NEW, [], False),
        (NEW, OTHER, [OLD], False),
    ],
)
def test_what_was_sealed_before_opens_while_the_old_root_is_held(
    tmp_path: Path, sealed_to: Secret, root: Secret, former: list[Secret], opens: bool
) -> None:
    with release_world(tmp_path, root=root.reveal(), former=former, approved_by=()) as world:
        for owner in OWNERS:
            world.sealed[owner] = world.seal(owner, keyring=Keyring(sealed_to))
            world.register(world.sealed[owner])
            world.approve(owner)
        if opens:
            keys = world.obtain().keys
            assert {name: key.reveal() for name, key in keys.items()} == {
                dataset.dataset_id: dataset.key.reveal() for dataset in world.sealed.values()
            }
            return
        with pytest.raises(NoStanza, check=carries(check="stanza")):
            world.obtain()


def test_the_command_makes_the_new_secret_and_names_what_to_do(site: BrokerSite) -> None:
    with serving(site, "old") as client:
        site.decide(client, "hospital-a")
    fresh = site.folder / "fresh"
    words = ["broker", "rotate-root", "--consortium", str(site.folder / "consortium.json")]
    words += ["--state", str(site.state("state")), "--root-secret", f"file:{site.folder / 'old'}"]
    made = CliRunner().invoke(app, [*words, "--new-root-secret", f"file:{fresh}", "--json"])
    assert made.exit_code == 0, made.output
    assert fresh.read_text().strip() not in made.output
    told = json.loads(made.stdout)
    assert from_base64(told["before"]) == OLD_KEY.public
    with serving(site, "fresh", "old") as client:
        assert client.ledger_entries(told["index"], 1)[0]["kind"] == "rotation"
        assert look(site, client) == from_base64(told["signing_key"])
