"""Public identities: what they commit to and what is refused."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sealtrain.base.canonical import canonical_json
from sealtrain.base.encoding import to_base64
from sealtrain.errors import DataInvalid, KeyFileInvalid
from sealtrain.sealing.hpke import PUBLIC_KEY_BYTES
from sealtrain.signing.identity import SEALING_KEY_BYTES, PublicIdentity

SIGNING = Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key().public_bytes_raw()
SEALING = bytes(range(256)) * 4 + bytes(192)
GOOD: dict[str, Any] = {
    "name": "hospital-a",
    "signing_key": to_base64(SIGNING),
    "sealing_key": to_base64(SEALING),
}


def test_the_owner_id_commits_to_both_keys() -> None:
    identity = PublicIdentity.of("hospital-a", signing_key=SIGNING, sealing_key=SEALING)
    expected = hashlib.sha256(b"sealtrain/owner/v1:" + SIGNING + SEALING).hexdigest()
    assert identity.owner_id == expected
    assert identity.key_id == "ed25519:" + hashlib.sha256(SIGNING).hexdigest()
    assert (identity.signing_bytes, identity.sealing_bytes) == (SIGNING, SEALING)


def test_a_name_is_no_part_of_the_owner_id() -> None:
    ids = {
        PublicIdentity.of(name, signing_key=SIGNING, sealing_key=SEALING).owner_id
        for name in ("a", "b")
    }
    assert len(ids) == 1


def test_an_identity_survives_its_file(tmp_path: Path) -> None:
    identity = PublicIdentity.from_dict(GOOD)
    path = tmp_path / "a.public.json"
    path.write_bytes(identity.to_bytes())
    assert PublicIdentity.load(path) == identity
    assert identity.to_bytes() == canonical_json(GOOD)
    path.write_text(json.dumps(GOOD, indent=2))
    assert PublicIdentity.load(path) == identity


def test_the_sealing_key_has_the_length_of_the_hpke_suite() -> None:
    assert SEALING_KEY_BYTES == PUBLIC_KEY_BYTES


@pytest.mark.parametrize(
    "change",
    [
        {"name": "Hospital"},
        {"name": ""},
        {"name": "-a"},
        {"name": "a" * 64},
        {"name": "a\n"},
        {"name": 1},
        {"signing_key": to_base64(SIGNING[:-1])},
        {"signing_key": to_base64(SIGNING).rstrip("=")},
        {"signing_key": to_base64((1).to_bytes(32, "little"))},
        {"signing_key": ""},
        {"sealing_key": to_base64(SEALING + b"\0")},
        {"sealing_key": "?"},
        {"extra": ""},
        {"sealing_key": None},
    ],
    ids=str,
)
def test_an_identity_that_breaks_a_rule_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(KeyFileInvalid):
        PublicIdentity.from_dict({**GOOD, **change})


def test_a_missing_field_is_named() -> None:
    with pytest.raises(KeyFileInvalid, check=carries(check="public identity", field="sealing_key")):
        PublicIdentity.from_dict({key: GOOD[key] for key in ("name", "signing_key")})


def test_a_private_file_in_its_place_is_refused_without_showing_it(tmp_path: Path) -> None:
    path = tmp_path / "a.identity.json"
    path.write_text(json.dumps({**GOOD, "seed": "do-not-show"}))
    with pytest.raises(KeyFileInvalid) as caught:
        PublicIdentity.load(path)
    assert "do-not-show" not in str(caught.value.to_dict())


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff", b'{"name":"a","name":"b"}'])
def test_bytes_that_are_no_identity_are_refused(data: bytes) -> None:
    with pytest.raises(KeyFileInvalid):
        PublicIdentity.from_bytes(data)


def test_a_file_that_is_not_there_or_too_long_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataInvalid):
        PublicIdentity.load(tmp_path / "nobody.public.json")
    (tmp_path / "long").write_bytes(b" " * 9000)
    with pytest.raises(DataInvalid):
        PublicIdentity.load(tmp_path / "long")
