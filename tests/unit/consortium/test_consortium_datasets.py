"""Dataset manifests: whose they are, what they publish, what is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from sealtrain.base.canonical import canonical_json, parse_json
from sealtrain.consortium.datasets import (
    PAYLOAD_TYPE,
    DatasetManifest,
    load_dataset_manifest,
    read_dataset_envelope,
    sign_dataset,
    verify_dataset,
)
from sealtrain.consortium.errors import DatasetMismatch
from sealtrain.consortium.members import Consortium
from sealtrain.errors import DataInvalid, SignatureInvalid
from sealtrain.sealing.description import DatasetDescription, ShardInfo
from sealtrain.sealing.stanza import RecipeBinding
from sealtrain.signing import dsse
from sealtrain.signing.errors import StatementInvalid

AT = "2026-03-01T12:00:00Z"


@pytest.fixture
def description(members: dict[str, Any]) -> DatasetDescription:
    ada = members["ada"].public
    shards = tuple(
        ShardInfo(name=f"shard-{n:05d}.sealed", size=10, root="0" * 64) for n in range(3)
    )
    return DatasetDescription(
        dataset_id="d1" * 16,
        name="biopsies",
        owner_id=ada.owner_id,
        owner_name="ada",
        root="e1" * 32,
        shards=shards,
        records=569,
        tokens=12_345,
        schema_digest="f1" * 32,
        binding=RecipeBinding(app_id="0a" * 20, compose_hash="0b" * 32, owner_id=ada.owner_id),
    )


@pytest.fixture
def envelope(description: DatasetDescription, members: dict[str, Any]) -> dsse.Envelope:
    return sign_dataset(description, members["ada"].signer, sealed_at=AT)


def test_a_manifest_says_what_was_sealed(
    envelope: dsse.Envelope, consortium: Consortium, members: dict[str, Any]
) -> None:
    manifest = verify_dataset(envelope, consortium)
    assert manifest.to_dict() == {
        "version": 1,
        "dataset_id": "d1" * 16,
        "name": "biopsies",
        "owner": "ada",
        "owner_id": members["ada"].public.owner_id,
        "root": "e1" * 32,
        "shards": 3,
        "records": 569,
        "tokens": 12_345,
        "schema_digest": "f1" * 32,
        "app_id": "0a" * 20,
        "compose_hash": "0b" * 32,
        "sealed_at": AT,
        "previous": None,
    }


def test_counts_stay_private_when_their_owner_says_so(
    description: DatasetDescription, members: dict[str, Any], consortium: Consortium
) -> None:
    signer = members["ada"].signer
    envelope = sign_dataset(description, signer, sealed_at=AT, publish_counts=False)
    manifest = verify_dataset(envelope, consortium)
    assert (manifest.records, manifest.tokens) == (None, None)
    assert b"569" not in envelope.payload
    assert b"12345" not in envelope.payload


def test_a_manifest_is_read_from_its_folder(
    envelope: dsse.Envelope, members: dict[str, Any], consortium: Consortium, tmp_path: Path
) -> None:
    (tmp_path / "dataset.json").write_bytes(envelope.to_bytes())
    assert read_dataset_envelope(tmp_path) == envelope
    for trusted in (members["ada"].public, consortium):
        assert load_dataset_manifest(tmp_path, trusted).name == "biopsies"


def test_another_owner_is_not_the_one_who_must_have_signed(
    envelope: dsse.Envelope, members: dict[str, Any]
) -> None:
    with pytest.raises(SignatureInvalid):
        verify_dataset(envelope, members["ben"].public)


def test_nobody_registers_a_dataset_for_somebody_else(
    description: DatasetDescription, members: dict[str, Any], consortium: Consortium
) -> None:
    stolen = sign_dataset(description, members["ben"].signer, sealed_at=AT)
    with pytest.raises(DatasetMismatch) as caught:
        verify_dataset(stolen, consortium)
    assert caught.value.owner == "ben"
    ben = members["ben"].public
    for changes in ({"owner_id": ben.owner_id}, {"owner_name": "ben"}):
        half = dataclasses.replace(description, **changes)
        with pytest.raises(DatasetMismatch):
            verify_dataset(sign_dataset(half, members["ben"].signer, sealed_at=AT), consortium)


def test_an_outsider_and_a_second_signature_are_refused(
    envelope: dsse.Envelope, members: dict[str, Any], outsider: Any, consortium: Consortium
) -> None:
    for signers in ([outsider.signer], [members["ada"].signer, members["ben"].signer]):
        with pytest.raises(SignatureInvalid):
            verify_dataset(dsse.sign(envelope.payload, PAYLOAD_TYPE, *signers), consortium)


@pytest.mark.parametrize(
    "change",
    [
        {"root": "e1" * 31},
        {"records": -1},
        {"records": "569"},
        {"records": 1.5},
        {"shards": 0},
        {"version": 2},
        {"sealed_at": "2026-02-30T00:00:00Z"},
        {"previous": ""},
        {"extra": 1},
        {"name": "Biopsies"},
    ],
    ids=str,
)
def test_a_manifest_in_another_format_is_refused_although_signed(
    change: dict[str, Any],
    envelope: dsse.Envelope,
    members: dict[str, Any],
    consortium: Consortium,
) -> None:
    document = {**parse_json(envelope.payload), **change}
    signed = dsse.sign(canonical_json(document), PAYLOAD_TYPE, members["ada"].signer)
    with pytest.raises(StatementInvalid):
        verify_dataset(signed, consortium)


def test_a_manifest_that_is_not_canonical_is_refused_although_signed(
    envelope: dsse.Envelope, members: dict[str, Any], consortium: Consortium
) -> None:
    loose = envelope.payload.replace(b'"version":1', b'"version": 1')
    with pytest.raises(StatementInvalid):
        verify_dataset(dsse.sign(loose, PAYLOAD_TYPE, members["ada"].signer), consortium)


def test_nothing_is_signed_that_would_not_be_read(
    description: DatasetDescription, members: dict[str, Any]
) -> None:
    with pytest.raises(StatementInvalid):
        sign_dataset(
            dataclasses.replace(description, name="No Name"), members["ada"].signer, sealed_at=AT
        )
    with pytest.raises(StatementInvalid):
        sign_dataset(description, members["ada"].signer, sealed_at="yesterday")


def test_a_folder_without_a_manifest_is_refused(tmp_path: Path, consortium: Consortium) -> None:
    with pytest.raises(DataInvalid):
        load_dataset_manifest(tmp_path, consortium)


def test_a_manifest_names_the_one_it_continues(
    description: DatasetDescription, envelope: dsse.Envelope, members: dict[str, Any]
) -> None:
    after = sign_dataset(description, members["ada"].signer, sealed_at=AT, previous=envelope.digest)
    manifest = verify_dataset(after, members["ada"].public)
    assert isinstance(manifest, DatasetManifest)
    assert manifest.previous == envelope.digest
