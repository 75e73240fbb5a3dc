"""The consortium document; its rules one by one are in ``vectors/approvals/consortium.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from carrying import carries

from sealtrain.base.digests import sha256_hex
from sealtrain.consortium.errors import ConsortiumInvalid
from sealtrain.consortium.members import MAX_CONSORTIUM_BYTES, Consortium
from sealtrain.errors import DataInvalid


def test_founding_does_not_depend_on_the_order_of_the_owners(
    members: dict[str, Any], consortium: Consortium
) -> None:
    owners = [member.public for member in reversed(members.values())]
    again = Consortium.found(name="labs", owners=owners, approve=2, own_data_consent=False)
    assert again.consortium_id == consortium.consortium_id
    assert [owner.name for owner in again.owners] == ["ada", "ben", "cyd"]
    assert (again.thresholds.approve, again.thresholds.revoke) == (2, 1)


def test_the_id_is_the_digest_of_the_file(consortium: Consortium, tmp_path: Path) -> None:
    path = tmp_path / "consortium.json"
    path.write_bytes(consortium.to_bytes())
    assert consortium.consortium_id == sha256_hex(path.read_bytes())
    assert Consortium.load(path) == consortium


def test_another_spelling_of_the_file_is_the_same_consortium(consortium: Consortium) -> None:
    pretty = json.dumps(consortium.to_dict(), indent=2).encode()
    assert Consortium.from_bytes(pretty).consortium_id == consortium.consortium_id


def test_every_change_founds_another_consortium(
    consortium: Consortium, members: dict[str, Any]
) -> None:
    owners = [member.public for member in members.values()]
    others = [
        Consortium.found(name="labz", owners=owners, approve=2),
        Consortium.found(name="labs", owners=owners, approve=3),
        Consortium.found(name="labs", owners=owners, approve=2, revoke=2),
        Consortium.found(name="labs", owners=owners[:2], approve=2),
    ]
    ids = {item.consortium_id for item in [consortium, *others]}
    assert len(ids) == 5


def test_owners_are_found_by_name_and_by_key(
    consortium: Consortium, members: dict[str, Any], outsider: Any
) -> None:
    ben = members["ben"].public
    assert consortium.owner("ben") == ben
    assert consortium.owner_by_key_id(ben.key_id) == ben
    assert consortium.owner_by_key_id(outsider.public.key_id) is None
    with pytest.raises(ConsortiumInvalid, check=carries(got="eve")):
        consortium.owner("eve")


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b"{}", b'{"name":"a","name":"b"}'])
def test_bytes_that_are_no_consortium_are_refused(data: bytes) -> None:
    with pytest.raises(ConsortiumInvalid):
        Consortium.from_bytes(data)


def test_a_misspelt_field_is_answered_with_the_right_one(consortium: Consortium) -> None:
    document = consortium.to_dict()
    document["thresholds"]["aprove"] = document["thresholds"].pop("approve")
    with pytest.raises(ConsortiumInvalid) as caught:
        Consortium.from_dict(document)
    assert "'approve'" in str(caught.value.hint)


def test_a_file_that_is_too_long_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "consortium.json"
    path.write_bytes(b" " * (MAX_CONSORTIUM_BYTES + 1))
    with pytest.raises(DataInvalid):
        Consortium.load(path)


def test_a_sealing_key_that_is_no_hpke_key_is_refused(consortium: Consortium) -> None:
    from sealtrain.base.encoding import to_base64

    document = consortium.to_dict()
    # Coefficients beyond the modulus of ML-KEM: right length, no key.
    document["owners"][0]["sealing_key"] = to_base64(b"\xff" * 1216)
    with pytest.raises(ConsortiumInvalid, match="sealing_key of ada"):
        Consortium.from_dict(document)
