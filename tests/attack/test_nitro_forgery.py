"""Whoever runs the parent instance forges, edits or replays Nitro documents: typed refusals.

The attacker holds a PKI of their own, every genuine document and the whole parent instance. They
do not hold keys below the root that the policy trusts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cbor2
import pytest
from carrying import carries
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from nitro_world import (
    ASKED,
    COMPOSE,
    HOUR,
    NOW,
    P384_ORDER,
    PKI,
    claims_of,
    enclave,
    fields,
    forge,
    genuine,
    policy,
    roles,
    verified,
)
from pydantic import ValidationError

from sealtrain.attest.errors import (
    CertificateChainInvalid,
    ComposeHashMismatch,
    DebugGuest,
    EvidenceMalformed,
    EvidenceStale,
    MeasurementMismatch,
    QuoteInvalid,
    QuoteRootUntrusted,
    ReportDataMismatch,
    SimulatedEvidence,
)
from sealtrain.attest.nitro.collect import attestation
from sealtrain.attest.nitro.verify import verify_document
from sealtrain.errors import EvidenceRefused
from sealtrain_rehearsal.simulator.nitro import SimulatedNsm

pytestmark = pytest.mark.claim("C14")
ZERO = "0" * 96
DAYS = 24 * HOUR


def test_the_documents_under_attack_are_accepted() -> None:
    """Every refusal below is a refusal of one of these two, changed."""
    facts = verified(genuine())
    assert (facts.report_data, facts.simulated) == (ASKED, True)
    forged = forge()
    assert verified(forged.document, simulator_root=forged.root).report_data == ASKED


@pytest.mark.negative(26)
@pytest.mark.parametrize("name", ["debug_2023", "debug_2024_userdata_nonce"])
def test_real_debug_documents_are_refused(shared: Path, name: str) -> None:
    """Chain and signature hold: only the registers say that the memory was open."""
    raw = (shared / f"vectors/nitro/{name}.cose").read_bytes()
    made = fields(raw)["timestamp"] // 1000
    assert verify_document(raw, simulator_root=None, now=made).debug
    with pytest.raises(DebugGuest):
        verified(raw, simulator_root=None, now=made)


@pytest.mark.negative(26)
@pytest.mark.parametrize("zeros", [(0, 1, 2), (0,), (1,), (2,)])
def test_a_zero_image_register_is_debug_mode(zeros: tuple[int, ...]) -> None:
    pcrs = fields(genuine())["pcrs"] | dict.fromkeys(zeros, bytes(48))
    forged = forge(pcrs=pcrs)
    with pytest.raises(DebugGuest):
        verified(forged.document, simulator_root=forged.root)


@pytest.mark.negative(26)
def test_a_policy_cannot_list_zeros() -> None:
    measured = "ab" * 48
    images = [
        {"pcr0": ZERO, "pcr1": measured, "pcr2": measured},
        {"pcr0": measured, "pcr1": ZERO, "pcr2": measured},
        {"pcr0": measured, "pcr1": measured, "pcr2": ZERO},
    ]
    for changes in (
        *({"images": (image,)} for image in images),
        {"signers": (measured, ZERO)},
        {"iam_roles": (ZERO,)},
    ):
        with pytest.raises(ValidationError, match="images"):
            policy(**changes)


@pytest.mark.negative(27)
def test_a_real_document_with_a_bad_signature_is_refused(shared: Path) -> None:
    raw = (shared / "vectors/nitro/bad_signature_2024.cose").read_bytes()
    with pytest.raises(QuoteInvalid):
        verify_document(raw, simulator_root=None, now=fields(raw)["timestamp"] // 1000)


@pytest.mark.negative(27)
def test_a_payload_with_the_signature_of_another_document_is_refused() -> None:
    other = attestation(enclave(), user_data=bytes(64))
    protected, unprotected, payload, _ = cbor2.loads(other)
    signature = cbor2.loads(genuine())[3]
    with pytest.raises(QuoteInvalid):
        verified(cbor2.dumps([protected, unprotected, payload, signature]))


@pytest.mark.negative(28)
def test_a_fake_root_with_awss_name_is_refused_under_awss_pin() -> None:
    forged = forge(roles(root={"name": "aws.nitro-enclaves"}))
    assert verified(forged.document, simulator_root=forged.root)  # consistent in itself
    with pytest.raises(QuoteRootUntrusted):
        verified(forged.document, simulator_root=None)
    with pytest.raises(QuoteRootUntrusted):
        verified(forged.document)  # nor under another simulator's


@pytest.mark.negative(28)
def test_the_true_root_above_a_forged_chain_is_refused(shared: Path) -> None:
    """AWS's certificates are public: putting them on top of a forged chain must not help."""
    raw = (shared / "vectors/nitro/prod_2026_indefinite_map.cose").read_bytes()
    made = fields(raw)["timestamp"] // 1000
    theirs = fields(raw)["cabundle"]
    ours = fields(forge(roles(zone={"dates": (made - 9, made + 9)})).document)["cabundle"]
    for kept in range(1, len(theirs) + 1):
        forged = forge(cabundle=[*theirs[:kept], *ours[1:]])
        with pytest.raises(CertificateChainInvalid):
            verified(forged.document, simulator_root=None, now=made)


@pytest.mark.claim("C15")
def test_simulated_documents_never_pass_where_hardware_is_asked_for() -> None:
    with pytest.raises(SimulatedEvidence):
        verified(genuine(), simulator_root=None)


@pytest.mark.claim("C15")
def test_a_simulators_policy_refuses_real_hardware(shared: Path) -> None:
    raw = (shared / "vectors/nitro/prod_2025_pubkey.cose").read_bytes()
    with pytest.raises(QuoteRootUntrusted):
        verified(raw, now=fields(raw)["timestamp"] // 1000)


@pytest.mark.parametrize("root", [b"\x30", bytes(700), b"no certificate"])
def test_a_root_that_is_no_certificate_is_foreign(root: bytes) -> None:
    forged = forge(cabundle=[root])
    with pytest.raises(QuoteRootUntrusted):
        verified(forged.document, simulator_root=None)


CHAINS: dict[str, dict[str, dict[str, Any]]] = {
    "leaf expired": {"leaf": {"dates": (NOW - 4 * HOUR, NOW - 1)}},
    "leaf not yet valid": {"leaf": {"dates": (NOW + 1, NOW + HOUR)}},
    "instance expired": {"instance": {"dates": (NOW - 2 * DAYS, NOW - DAYS)}},
    "zone expired": {"zone": {"dates": (NOW - 2 * DAYS, NOW - DAYS)}},
    "root expired": {"root": {"dates": (NOW - 2 * DAYS, NOW - DAYS)}},
    "leaf is a CA": {"leaf": {"ca": True}},
    "leaf lacks digitalSignature": {"leaf": {"signs_documents": False}},
    "leaf on P-256": {"leaf": {"curve": ec.SECP256R1}},
    "issuer on P-256": {"zone": {"curve": ec.SECP256R1}},
    "path length exceeded": {"zone": {"path": 0}},
    "root's path length exceeded": {"root": {"path": 1}},
    "intermediate is no CA": {"instance": {"ca": False}},
    "intermediate without keyCertSign": {"zone": {"signs_certificates": False}},
    "root is no CA": {"root": {"ca": False}},
    "intermediate without basicConstraints": {"instance": {"constraints": False}},
    "leaf without basicConstraints": {"leaf": {"constraints": False}},
    "forged intermediate": {"instance": {"signed_by": "the attacker"}},
    "forged leaf": {"leaf": {"signed_by": "the attacker"}},
    "issued by another name": {"instance": {"issuer_name": "SIMULATED another zone"}},
    "signed over SHA-256": {"instance": {"algorithm": hashes.SHA256()}},
    "unknown critical extension": {"leaf": {"unknown_critical": True}},
}


@pytest.mark.negative(29)
@pytest.mark.parametrize("defect", CHAINS)
def test_a_defective_chain_is_refused(defect: str) -> None:
    forged = forge(roles(**CHAINS[defect]))
    with pytest.raises(CertificateChainInvalid):
        verified(forged.document, simulator_root=forged.root)


@pytest.mark.negative(29)
def test_a_chain_in_another_order_or_with_a_gap_is_refused() -> None:
    honest = forge()
    root, zone, instance = fields(honest.document)["cabundle"]
    for bundle in (
        [root],
        [root, instance],
        [root, instance, zone],
        [root, zone, zone, instance],
        [root, zone, instance, b"\x30\x00"],
    ):
        with pytest.raises(CertificateChainInvalid):
            verified(forge(cabundle=bundle).document, simulator_root=honest.root)


@pytest.mark.negative(10)
@pytest.mark.negative(29)
def test_a_remembered_chain_is_still_refused_after_its_time() -> None:
    """Signatures are remembered, times never."""
    assert verified(genuine())
    for now in (NOW - 2 * DAYS, NOW + 4 * HOUR):
        with pytest.raises(CertificateChainInvalid):
            verified(genuine(), now=now)


@pytest.mark.negative(30)
@pytest.mark.parametrize(
    "parts",
    [
        {"unprotected": {1: -35}, "protected": b"\xa0"},
        {"unprotected": {1: -35}},
        {"unprotected": []},
        {"unprotected": b""},
        {"protected": b"\xa1\x01\x26"},  # ES256
        {"protected": b"\xa1\x01\xf5"},
        {"protected": b"\xa1\xf5\x38\x22"},  # true is no 1
        {"protected": b"\xa2\x01\x38\x22\x04\x41\x00"},  # a key id beside it
        {"protected": b"\xa1\x01\x38\x22\x00"},
        {"protected": b""},
        {"protected": b"\x80"},
        {"signature": b""},
        {"signature": bytes(96)},
        {"signature": bytes(48) + b"\x01" * 48},
        {"signature": b"\x01" * 48 + bytes(48)},
        {"signature": b"\x01" * 95},
        {"signature": b"\x01" * 97},
    ],
    ids=repr,
)
def test_a_header_or_signature_of_another_form_is_refused(parts: dict[str, Any]) -> None:
    forged = forge(**parts)
    with pytest.raises(EvidenceMalformed):
        verified(forged.document, simulator_root=forged.root)


@pytest.mark.negative(30)
@pytest.mark.parametrize("value", [P384_ORDER, P384_ORDER + 1, 2**384 - 1])
def test_a_signature_out_of_range_is_refused(value: int) -> None:
    forged = forge(signature=value.to_bytes(48, "big") * 2)
    with pytest.raises(QuoteInvalid):
        verified(forged.document, simulator_root=forged.root)


@pytest.mark.negative(30)
@pytest.mark.parametrize("tag", [b"\xd8\x62", b"\xd1", b"\xd2\xd2", b"\xd8\x12\xd2", b"\xc6"])
def test_another_tag_is_refused(tag: bytes) -> None:
    """98 is COSE_Sign, 17 COSE_Mac0; 18 stands once."""
    with pytest.raises(EvidenceMalformed):
        verified(tag + genuine())


@pytest.mark.negative(31)
def test_a_key_that_stands_twice_is_refused() -> None:
    content = cbor2.dumps(fields(forge().document))
    assert content[:1] == b"\xa9"
    twice = b"\xaa" + content[1:] + cbor2.dumps("digest") + cbor2.dumps("SHA384")
    open_ended = b"\xbf" + twice[1:] + b"\xff"
    pcrs = b"".join(bytes([n]) + b"\x58\x30" + bytes(48) for n in (0, 1, 2)) + (
        b"\x18\x00\x58\x30" + b"\x01" * 48  # 0 again, in a longer spelling
    )
    inner = cbor2.dumps(fields(forge().document) | {"pcrs": 0}).replace(
        b"\x64pcrs\x00", b"\x64pcrs\xa4" + pcrs
    )
    for payload in (twice, open_ended, inner):
        forged = forge(payload=payload)
        with pytest.raises(EvidenceMalformed, check=carries(check="CBOR")):
            verified(forged.document, simulator_root=forged.root)


@pytest.mark.negative(31)
def test_bytes_after_payload_or_array_are_refused() -> None:
    content = cbor2.dumps(fields(forge().document))
    for tail in (b"\0", b"\xf6", content):
        forged = forge(payload=content + tail)
        with pytest.raises(EvidenceMalformed):
            verified(forged.document, simulator_root=forged.root)
    for tail in (b"\0", b"\xff", b"\0" * 64, genuine()):
        with pytest.raises(EvidenceMalformed):
            verified(genuine() + tail)


@pytest.mark.negative(31)
def test_nine_thousand_nested_arrays_are_refused() -> None:
    deep = b"\x81" * 9000 + b"\xf6"
    for document in (deep, b"\x9f" * 9000, forge(payload=deep).document):
        with pytest.raises(EvidenceMalformed, check=carries(check="CBOR")):
            verified(document)


@pytest.mark.negative(32)
def test_a_payload_of_indefinite_length_is_accepted(shared: Path) -> None:
    raw = (shared / "vectors/nitro/prod_2026_indefinite_map.cose").read_bytes()
    assert cbor2.loads(raw)[2][0] == 0xBF
    facts = verify_document(raw, simulator_root=None, now=fields(raw)["timestamp"] // 1000)
    assert facts.document.user_data is not None
    content = cbor2.dumps(fields(forge().document))
    forged = forge(payload=b"\xbf" + content[1:] + b"\xff")
    assert verified(forged.document, simulator_root=forged.root).report_data == ASKED


@pytest.mark.negative(32)
def test_strings_in_chunks_are_refused() -> None:
    """Containers may be open-ended; the same string in pieces would be a second spelling."""
    content = cbor2.dumps(fields(forge().document))
    whole = b"\x66digest\x66SHA384"
    assert whole in content
    for pieces in (b"\x66digest\x7f\x63SHA\x63384\xff", b"\x7f\x66digest\xff\x66SHA384"):
        forged = forge(payload=content.replace(whole, pieces))
        with pytest.raises(EvidenceMalformed, check=carries(check="CBOR")):
            verified(forged.document, simulator_root=forged.root)
    protected, _, payload, signature = cbor2.loads(genuine())
    chunked = b"\x84\x44" + protected + b"\xa0\x5f" + cbor2.dumps(payload) + b"\xff"
    with pytest.raises(EvidenceMalformed, check=carries(check="CBOR")):
        verified(chunked + cbor2.dumps(signature))


@pytest.mark.negative(33)
@pytest.mark.parametrize(
    ("seconds", "ok"), [(-301, False), (-300, True), (0, True), (60, True), (61, False)]
)
def test_a_document_is_as_old_as_the_policy_allows(seconds: int, ok: bool) -> None:
    forged = forge(timestamp=(NOW + seconds) * 1000)
    if ok:
        facts = verified(forged.document, simulator_root=forged.root)
        claims_of(facts, policy(), NOW)
        with pytest.raises(EvidenceStale):
            claims_of(facts, policy(), NOW + seconds + 301)  # a verified fact grows old, too
    else:
        with pytest.raises(EvidenceStale):
            verified(forged.document, simulator_root=forged.root)


@pytest.mark.negative(33)
@pytest.mark.parametrize(
    "value", [0, -1, True, None, str(NOW * 1000), float(NOW), 2**63, 2**64, b"\0\0", []], ids=repr
)
def test_a_timestamp_of_another_form_is_refused(value: Any) -> None:
    forged = forge(timestamp=value)
    with pytest.raises(EvidenceMalformed):
        verified(forged.document, simulator_root=forged.root)


def registers(**changes: Any) -> dict[Any, Any]:
    return {**fields(genuine())["pcrs"], **changes}


@pytest.mark.negative(34)
@pytest.mark.parametrize(
    "changes",
    [
        {"pcrs": fields(genuine())["pcrs"] | {32: bytes(48)}},
        {"pcrs": fields(genuine())["pcrs"] | {-1: bytes(48)}},
        {"pcrs": fields(genuine())["pcrs"] | {"17": bytes(48)}},
        {"pcrs": fields(genuine())["pcrs"] | {5: bytes(31)}},
        {"pcrs": fields(genuine())["pcrs"] | {5: bytes(32)}},
        {"pcrs": fields(genuine())["pcrs"] | {5: bytes(64)}},
        {"pcrs": fields(genuine())["pcrs"] | {5: "0" * 48}},
        {"pcrs": {n: v for n, v in fields(genuine())["pcrs"].items() if n != 0}},
        {"pcrs": {}},
        {"pcrs": []},
        {"digest": "SHA256"},
        {"digest": b"SHA384"},
        {"digest": None},
        {"module_id": ""},
        {"module_id": "i-0123456789abcdef0"},
        {"module_id": "i-0123456789abcdef0-enc0123456789abcdeg"},
        {"module_id": "i-0123456789abcdef0-enc0123456789abcdef\n"},
        {"module_id": 7},
        {"certificate": b""},
        {"certificate": bytes(1025)},
        {"certificate": None},
        {"cabundle": []},
        {"cabundle": [b""]},
        {"cabundle": [bytes(2)] * 9},
        {"cabundle": b"\x30"},
        {"user_data": "text"},
        {"user_data": bytes(1025)},
        {"nonce": 1},
        {"public_key": [1]},
        {7: "a key that is no text"},
    ],
    ids=lambda changes: repr(changes)[:60],
)
def test_fields_of_another_form_are_refused(changes: dict[str, Any]) -> None:
    forged = forge(payload=cbor2.dumps(fields(forge().document) | changes))
    with pytest.raises(EvidenceMalformed):
        verified(forged.document, simulator_root=forged.root)


@pytest.mark.negative(34)
@pytest.mark.parametrize("name", ["module_id", "digest", "timestamp", "pcrs", "certificate"])
def test_a_missing_field_is_refused(name: str) -> None:
    forged = forge(without=(name,))
    with pytest.raises(EvidenceMalformed):
        verified(forged.document, simulator_root=forged.root)


@pytest.mark.negative(35)
def test_a_parent_that_differs_from_the_modules_name_is_refused() -> None:
    with pytest.raises(MeasurementMismatch):
        verified(attestation(enclave("wrong-parent"), user_data=ASKED))
    forged = forge(module_id="i-0fffffffffffffff0-enc0123456789abcdef")
    with pytest.raises(MeasurementMismatch):
        verified(forged.document, simulator_root=forged.root)


@pytest.mark.parametrize("count", [None, 0, 20, 32, 63, 65, 1024])
@pytest.mark.negative(4)
@pytest.mark.negative(5)
def test_report_data_of_another_length_is_refused(count: int | None) -> None:
    document = attestation(enclave(), user_data=None if count is None else bytes(count))
    with pytest.raises(ReportDataMismatch):
        verified(document)


def test_another_deployment_document_is_refused() -> None:
    for other in (COMPOSE.strip(), COMPOSE + b" ", b"{}", b""):
        with pytest.raises(ComposeHashMismatch):
            verified(genuine(), compose=other)


def test_a_register_that_is_not_locked_says_nothing() -> None:
    """Documents hold locked registers alone: an enclave that measures later can still lie."""
    from sealtrain.attest.nitro.collect import extend_pcr, lock_pcr
    from sealtrain.base.digests import sha256_hex

    nsm = SimulatedNsm(PKI, clock=lambda: NOW)
    with pytest.raises(
        ComposeHashMismatch, check=carries(check="compose hash", got="PCR16 is not locked")
    ):
        verified(attestation(nsm, user_data=ASKED))
    extend_pcr(nsm, 16, bytes.fromhex(sha256_hex(COMPOSE)))
    with pytest.raises(
        ComposeHashMismatch, check=carries(check="compose hash", got="PCR16 is not locked")
    ):
        verified(attestation(nsm, user_data=ASKED))
    lock_pcr(nsm, 16)
    assert verified(attestation(nsm, user_data=ASKED))
    twice = SimulatedNsm(PKI, clock=lambda: NOW)
    for document in (b"first", COMPOSE):
        extend_pcr(twice, 16, bytes.fromhex(sha256_hex(document)))
    lock_pcr(twice, 16)
    with pytest.raises(ComposeHashMismatch):
        verified(attestation(twice, user_data=ASKED))


def test_no_flipped_bit_of_a_simulated_document_is_accepted() -> None:
    """Sampled, with another bit at each place; real ones are swept beside their vectors."""
    raw = genuine()
    for at in {*range(0, len(raw), 11), *range(12), *range(len(raw) - 98, len(raw))}:
        flipped = bytearray(raw)
        flipped[at] ^= 1 << at % 8
        with pytest.raises(EvidenceRefused):
            verified(bytes(flipped))


def test_other_spellings_of_one_document_have_one_identity() -> None:
    """Tag, lengths and the second form of an ECDSA signature are outside what is signed."""
    identity = verified(genuine()).quote_identity
    protected, unprotected, payload, signature = cbor2.loads(genuine())
    s = int.from_bytes(signature[48:], "big")
    other_s = signature[:48] + (P384_ORDER - s).to_bytes(48, "big")
    long_head = b"\x84\x44" + protected + b"\xa0\x5a" + len(payload).to_bytes(4, "big") + payload
    for document in (
        b"\xd2" + genuine(),
        cbor2.dumps([protected, unprotected, payload, other_s]),
        long_head + cbor2.dumps(signature),
        b"\x9f" + genuine()[1:] + b"\xff",
    ):
        assert document != genuine()
        assert verified(document).quote_identity == identity
