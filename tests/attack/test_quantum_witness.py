"""An owner with a post-quantum witness key: whoever forges Ed25519 does not speak for it."""

from __future__ import annotations

import base64
import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from broker_site import BrokerSite, broker_site
from typer.testing import CliRunner

from sealtrain.base.clock import system_clock
from sealtrain.base.secret import Secret
from sealtrain.cli import app
from sealtrain.client.broker_api import BrokerClient
from sealtrain.consortium.errors import ConsortiumInvalid
from sealtrain.consortium.members import Consortium
from sealtrain.errors import KeyFileInvalid, SignatureInvalid
from sealtrain.keys.identity import Identity
from sealtrain.ledger.witness import cosign_tree_head
from sealtrain.signing.identity import PublicIdentity
from sealtrain.signing.ml_dsa import MlDsa44Signer
from sealtrain.signing.note import SignedNote

pytestmark = pytest.mark.claim("C65")

QUANTUM, PLAIN = "hospital-q", "hospital-p"


def owner(name: str) -> Identity:
    seed = Secret(sha256(f"witness {name}".encode()).digest())
    return Identity(name, seed, post_quantum=name == QUANTUM)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A broker of two owners, one of them with a witness key."""
    with broker_site(tmp_path_factory.mktemp("quantum")) as made:
        consortium = Consortium.found(
            name="two", owners=[owner(PLAIN).public, owner(QUANTUM).public], approve=1
        )
        (made.folder / "consortium.json").write_bytes(consortium.to_bytes())
        made.consortium = consortium
        for name in (QUANTUM, PLAIN):
            owner(name).save(made.folder / f"{name}.identity.json")
        yield made


def run(site: BrokerSite, *words: str) -> Any:
    return CliRunner().invoke(app, [*words, "--consortium", str(site.folder / "consortium.json")])


def test_both_kinds_of_witness_make_a_quorum(site: BrokerSite) -> None:
    with site.serving("both") as broker:
        file = str(site.broker_file(broker))
        for count, name in enumerate((QUANTUM, PLAIN), 1):
            identity = str(site.folder / f"{name}.identity.json")
            words = ("log", "witness", "--identity", identity, "--broker", file)
            done = run(site, *words, "--quorum", str(count), "--json")
            assert done.exit_code == 0, done.output
        [note] = broker.ledger_cosigned()
        lines = SignedNote.from_text(note).signatures[1:]
        assert sorted(len(line.signature) for line in lines) == [8 + 64, 8 + 2420]
        audited = run(site, "log", "audit", "--broker", file, "--quorum", "2", "--json")
        assert audited.exit_code == 0, audited.output
        assert json.loads(audited.stdout)["cosignatures"] == 2
    with site.serving("both") as broker:  # kept, and held against the ledger at the start
        assert broker.ledger_witnessed(2) == note


def test_a_forged_signing_key_is_no_witness(site: BrokerSite) -> None:
    """The attacker has the owner's Ed25519 key, but not the ML-DSA-44 key."""
    stolen = owner(QUANTUM).signer
    with (
        site.serving("forged") as anybody,
        BrokerClient(anybody.url, signer=stolen, broker=site.pin.broker_id) as broker,
    ):
        note = broker.ledger_checkpoint()
        now = system_clock()
        by_ed25519 = cosign_tree_head(note, QUANTUM, stolen, at=now)
        by_another = cosign_tree_head(note, QUANTUM, MlDsa44Signer(Secret(bytes(32))), at=now)
        for_another = cosign_tree_head(note, PLAIN, owner(QUANTUM).witness, at=now)
        signed = SignedNote.from_text(note)
        for line in (by_ed25519, by_another, for_another):
            with pytest.raises(SignatureInvalid):
                broker.submit_cosignature(signed.with_signature(line).to_text())
        assert broker.ledger_cosigned() == ()
        good = cosign_tree_head(note, QUANTUM, owner(QUANTUM).witness, at=now)
        for place in (0, 8, 9, 2000, 2427):
            altered = bytearray(good.signature)
            altered[place] ^= 1
            line = type(good)(name=good.name, key_id=good.key_id, signature=bytes(altered))
            with pytest.raises(SignatureInvalid):
                broker.submit_cosignature(signed.with_signature(line).to_text())
        assert len(broker.submit_cosignature(signed.with_signature(good).to_text())) == 1


def test_an_identity_with_a_witness_key_is_the_same_owner(tmp_path: Path) -> None:
    quantum = owner(QUANTUM)
    plain = Identity(QUANTUM, Secret(sha256(f"witness {QUANTUM}".encode()).digest()))
    assert quantum.public.owner_id == plain.public.owner_id
    assert quantum.public.to_bytes() != plain.public.to_bytes()
    assert b"witness" not in plain.public.to_bytes()
    quantum.save(tmp_path / "q.json")
    assert Identity.load(tmp_path / "q.json").public == quantum.public
    assert PublicIdentity.from_bytes(quantum.public.to_bytes()) == quantum.public
    made = CliRunner().invoke(
        app, ["keygen", "lab", "--post-quantum", "--out", str(tmp_path / "keys"), "--json"]
    )
    assert made.exit_code == 0, made.output
    public = PublicIdentity.load(tmp_path / "keys" / "lab.public.json")
    assert len(public.witness_bytes) == 1312


def test_witness_keys_are_written_well_or_not_at_all() -> None:
    good = owner(QUANTUM).public.to_dict()
    short = base64.b64encode(bytes(1311)).decode()
    for wrong in (None, "", short, good["signing_key"], good["witness_key"] + "AAAA", 5):
        with pytest.raises(KeyFileInvalid):
            PublicIdentity.from_dict(good | {"witness_key": wrong})
    twin = owner(PLAIN).public.to_dict() | {"witness_key": good["witness_key"]}
    with pytest.raises(ConsortiumInvalid, match="witness_key"):
        Consortium.found(
            name="two", owners=[PublicIdentity.from_dict(good), PublicIdentity.from_dict(twin)]
        )
    text = repr(owner(QUANTUM).witness)
    assert "private" in text
