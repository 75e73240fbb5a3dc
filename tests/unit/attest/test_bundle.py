"""Bundles: what was verified once verifies again from one file, at its time, without a network."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from exhibit_world import REFUSED, Real, accepted, exhibit_of
from manifest_world import make_world

from sealtrain.attest.bundle import Attachments, Bundle
from sealtrain.attest.errors import EvidenceMalformed, GpuNonceMismatch, ReportDataMismatch
from sealtrain.attest.exhibits import recognise
from sealtrain.attest.explain.examine import examine, make_bundle, unwrap_bundle
from sealtrain.attest.report_data import Binding
from sealtrain.base.canonical import canonical_json
from sealtrain.base.encoding import to_base64
from sealtrain.errors import DataInvalid, EvidenceRefused, SealtrainError


def nonce_of(one: Real) -> bytes | None:
    return None if one.nonce is None else bytes.fromhex(one.nonce)


def bundle_of(shared: Path, one: Real, **changed: Any) -> Bundle:
    beside = one.beside(shared, **{"nonce": nonce_of(one), **changed})
    return make_bundle(exhibit_of(shared, one.file), beside, one.rules(), one.at)


def test_everything_that_verifies_can_be_bundled_and_verifies_from_the_bundle(
    shared: Path,
) -> None:
    for real in accepted(shared):
        data = bundle_of(shared, real).to_bytes()
        exhibit = recognise(data)
        inner, beside = unwrap_bundle(exhibit, Attachments())
        bundle = Bundle.from_bytes(data)
        assert bundle.time == real.at
        first = examine(exhibit_of(shared, real.file), real.beside(shared), real.rules(), real.at)
        again = examine(inner, beside, real.rules(), bundle.time)
        assert again.identities == first.identities
        assert again.bound == (real.nonce is not None)
        assert bundle.policy == real.rules()
        assert Bundle.from_bytes(bundle.to_bytes()) == bundle


def test_a_bundle_of_what_does_not_verify_is_never_made(shared: Path) -> None:
    for real, code in REFUSED:
        with pytest.raises(EvidenceRefused) as refused:
            bundle_of(shared, real)
        assert refused.value.code == code
    for real in accepted(shared):
        with pytest.raises((ReportDataMismatch, GpuNonceMismatch)):
            bundle_of(shared, real, nonce=bytes(32))
    root = exhibit_of(shared, "nitro/aws_nitro_root_g1.pem")
    rim = exhibit_of(shared, "nvidia/rim/driver_GH100_550.144.03.xml")
    for exhibit in (root, rim):  # no evidence, though the second is signed
        with pytest.raises(DataInvalid):
            make_bundle(exhibit, Attachments(), None, 1_780_000_000)


def test_without_a_policy_a_bundle_holds_signature_and_root(shared: Path) -> None:
    [one] = [real for real in accepted(shared) if real.file == "tdx/tdx_quote"]
    bundle = make_bundle(exhibit_of(shared, one.file), one.beside(shared), None, one.at)
    assert bundle.policy is None
    inner, beside = unwrap_bundle(recognise(bundle.to_bytes()), Attachments())
    found = examine(inner, beside, None, bundle.time)
    assert found.label.startswith("SIGNATURE AND ROOT VERIFIED")
    data = bytearray((shared / "vectors" / one.file).read_bytes())
    data[200] ^= 1
    with pytest.raises(EvidenceRefused):
        make_bundle(recognise(bytes(data)), one.beside(shared), None, one.at)


@pytest.fixture(scope="module")
def document(shared: Path) -> dict[str, Any]:
    [one] = [real for real in accepted(shared) if real.file == "nitro/prod_2025_pubkey.cose"]
    return bundle_of(shared, one).to_dict()


@pytest.mark.parametrize(
    "change",
    [
        {"version": 1},
        {"version": 3},
        {"version": "2"},
        {"kind": "certificates"},
        {"kind": "tdx-quote"},
        {"evidence": "AAAB"},
        {"evidence": "not base64"},
        {"evidence": ""},
        {"nonce": "A0"},
        {"nonce": ""},
        {"verified_at": "2025-02-30T00:00:00Z"},
        {"verified_at": "2025-04-15 02:25:23Z"},
        {"verified_at": 1744683923},
        {"certificates": ["AAA"]},
        {"certificates": ["AAAA"] * 9},
        {"compose_hash": "00"},
        {"conversation": {"purpose": "Attest", "transcript": {}}},
        {"conversation": {"purpose": "attest"}},
        {"policy": {}},
        {"collateral": {}},
        {"trusted": True},
    ],
    ids=lambda change: json.dumps(change)[:60],
)
def test_a_bundle_of_another_form_is_refused(
    document: dict[str, Any], change: dict[str, Any]
) -> None:
    data = canonical_json({**document, **change})
    with pytest.raises(SealtrainError) as refused:
        unwrap_bundle(recognise(data), Attachments())
    assert refused.value.code in ("evidence-malformed", "format-unknown")


@pytest.mark.parametrize(
    "name", ["version", "kind", "evidence", "collateral", "policy", "verified_at", "nonce"]
)
def test_a_bundle_without_one_of_its_fields_is_refused(document: dict[str, Any], name: str) -> None:
    without = {key: value for key, value in document.items() if key != name}
    with pytest.raises(EvidenceMalformed):
        Bundle.from_dict(without)


def test_a_bundle_in_another_spelling_is_refused(document: dict[str, Any]) -> None:
    with pytest.raises(EvidenceMalformed, check=carries(check="bundle")):
        recognise(json.dumps(document, indent=1).encode())
    with pytest.raises(EvidenceMalformed, check=carries(check="bundle")):
        Bundle.from_bytes(canonical_json(document) + b"\n")


def test_a_bundle_inside_a_bundle_is_refused(document: dict[str, Any]) -> None:
    nested = {**document, "evidence": to_base64(canonical_json(document))}
    with pytest.raises(EvidenceMalformed, check=carries(check="bundle", got="bundle")):
        unwrap_bundle(recognise(canonical_json(nested)), Attachments())


def test_what_a_person_names_counts_more_than_what_the_bundle_holds(shared: Path) -> None:
    [one] = [real for real in accepted(shared) if real.file == "tdx/tdx_quote"]
    exhibit = recognise(bundle_of(shared, one).to_bytes())
    inner, beside = unwrap_bundle(exhibit, Attachments(nonce=bytes(64)))
    assert beside.collateral is not None
    with pytest.raises(ReportDataMismatch):
        examine(inner, beside, one.rules(), one.at)


def test_a_conversation_survives_the_bundle() -> None:
    said = Binding("release", {"challenge": "00", "keys": ["a", "b"]})
    built = Bundle.build(
        "evidence", b"abc", Attachments(binding=said, app_compose=b"{}"), policy=None, verified_at=0
    )
    beside = Bundle.from_bytes(built.to_bytes()).beside
    assert beside.binding is not None
    assert beside.binding.report_data() == said.report_data()
    assert beside.app_compose == b"{}"
    with pytest.raises(EvidenceMalformed, match="UTF-8"):
        Bundle.build(
            "evidence", b"abc", Attachments(app_compose=b"\xff"), policy=None, verified_at=0
        )


OFFLINE = """
import json, sys

def refuse(event, arguments):
    if event.startswith("socket."):
        raise SystemExit(f"asked the network: {event} {arguments}")

sys.addaudithook(refuse)
try:
    import socket
    socket.getaddrinfo("localhost", 80)
except SystemExit:
    pass
else:
    raise SystemExit("the network is not blocked")

from sealtrain.cli import main

for words in json.load(sys.stdin):
    sys.argv = ["sealtrain", *words]
    try:
        main()
    except SystemExit as ended:
        if ended.code:
            raise
"""


def test_bundles_and_a_manifest_verify_with_the_network_blocked(
    shared: Path, tmp_path: Path
) -> None:
    commands: list[list[str]] = []
    for index, real in enumerate(accepted(shared)):
        path, policy = tmp_path / f"{index}.json", tmp_path / f"{index}.yaml"
        path.write_bytes(bundle_of(shared, real).to_bytes())
        policy.write_text(json.dumps(real.policy))
        commands.append(["attest", "verify", str(path), "--policy", str(policy)])
    world = make_world(tmp_path)
    (tmp_path / "manifest.json").write_bytes(world.manifest())
    (tmp_path / "trust.yaml").write_text(json.dumps(world.trust_document()))
    manifest, trust = str(tmp_path / "manifest.json"), str(tmp_path / "trust.yaml")
    commands.append(["verify", manifest, "--trust", trust, "--artefacts", str(world.artefacts)])
    done = subprocess.run(
        [sys.executable, "-c", OFFLINE],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    verdicts = [line for line in done.stdout.splitlines() if ": " in line and " at " in line]
    assert sum(line.startswith(("VERIFIED", "SIMULATED")) for line in verdicts) == len(commands) - 1
    assert "verified" in done.stdout.splitlines()[-1]
