"""Whoever runs the machine chooses its firmware, and with it the form of the report.

Every version that AMD's specification defines is judged by all it says; another one by nothing.
"""

from __future__ import annotations

from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from policies import snp

from sealtrain.attest.bundle import Attachments
from sealtrain.attest.errors import (
    CertificateRevoked,
    PlatformMismatch,
    QuoteInvalid,
    RevocationUnknown,
    TcbStatusRefused,
)
from sealtrain.attest.exhibits import recognise
from sealtrain.attest.explain.examine import examine, make_bundle, unwrap_bundle
from sealtrain.attest.policy import AppraisalPolicy, policy_from_dict
from sealtrain.attest.presets import insecure_simulator_policy
from sealtrain.attest.snp.revocation import check_revocation
from sealtrain.errors import EvidenceRefused, Refused
from sealtrain_rehearsal.simulator.snp import SNP_EXTENDED_TCB, SNP_MITIGATIONS, SimulatedSnp

pytestmark = pytest.mark.claim("C116")

NOW = 1_800_000_000
COMPOSE = b'{"name":"attacked"}'
ASKED = bytes(range(64))
SEED = b"a simulated chip of some firmware"
VERSIONS = (2, 3, 4, 5, 6)
LEVELS = {"bootloader": 0, "tee": 0, "snp": 0, "microcode": 0}


def guest_of(version: int | None, **changes: Any) -> SimulatedSnp:
    return SimulatedSnp(SEED, version=version, **changes)


def rules(guest: SimulatedSnp, **changes: Any) -> AppraisalPolicy:
    document: dict[str, Any] = insecure_simulator_policy(guest.root_der, tee="snp").to_dict()
    return policy_from_dict({**document, "cpu": snp(minimum_tcb={"Genoa": LEVELS}, **changes)})


def judged(guest: SimulatedSnp, raw: bytes | None = None, **changes: Any) -> dict[str, str]:
    """Claims of a bare report under rules, by their outcome."""
    report = guest.report(ASKED, COMPOSE) if raw is None else raw
    beside = Attachments(nonce=ASKED, certificates=guest.certificates(), app_compose=COMPOSE)
    found = examine(recognise(report), beside, rules(guest, **changes), NOW)
    return {claim.name: claim.outcome for claim in found.submods["cpu0"].claims}


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_of_the_specification_is_judged(version: int) -> None:
    found = judged(guest_of(version))
    assert found["mitigations"] == found["extended TCB"] == found["platform flags"] == "any"
    assert found["report data"] == found["compose hash"] == "equal"


@pytest.mark.parametrize("version", [0, 1, 7, 8, 47, 48, 255, 256, 1 << 16 | 5, 0xFFFFFFFF])
def test_an_unknown_version_is_a_refusal_though_it_is_well_signed(version: int) -> None:
    guest = guest_of(version)
    with pytest.raises(Refused) as refused:
        examine_evidence(guest)
    assert refused.value.exit_code == 3
    if 0 < version < 48:  # what a file begins with says that it is a report
        with pytest.raises(QuoteInvalid) as named:
            judged(guest)
        assert (named.value.got, named.value.expected) == (str(version), "2 to 6")


def examine_evidence(guest: SimulatedSnp) -> None:
    """The same in a document of sealtrain's own, as a guest sends it to a broker."""
    from sealtrain.attest.evidence import Evidence

    shown = guest.show(ASKED, COMPOSE, now=NOW)
    evidence = Evidence.build("simulator", app_compose=COMPOSE, **shown)
    examine(recognise(evidence.to_bytes()), Attachments(), rules(guest), NOW)


@pytest.mark.parametrize("told", VERSIONS)
@pytest.mark.parametrize("made", VERSIONS)
def test_a_report_that_is_called_another_version_is_not_signed(made: int, told: int) -> None:
    if made == told:
        return
    guest = guest_of(made)
    raw = bytes([told]) + guest.report(ASKED, COMPOSE)[1:]
    with pytest.raises(EvidenceRefused):
        judged(guest, raw)


@pytest.mark.negative(41)
@pytest.mark.parametrize("version", VERSIONS)
def test_mitigations_that_the_policy_asks_for_must_be_told_and_on(version: int) -> None:
    guest = guest_of(version)
    on = {"Genoa": f"{SNP_MITIGATIONS:016x}"}
    if version >= 5:
        assert judged(guest, mitigations=on)["mitigations"] == "allowed"
    else:
        with pytest.raises(TcbStatusRefused) as refused:
            judged(guest, mitigations=on)
        assert refused.value.check == "mitigations"
    with pytest.raises(TcbStatusRefused):
        judged(guest, mitigations={"Genoa": f"{SNP_MITIGATIONS << 1:016x}"})


@pytest.mark.negative(41)
@pytest.mark.parametrize("version", VERSIONS)
def test_an_extended_tcb_that_the_policy_does_not_list_is_refused(version: int) -> None:
    guest = guest_of(version)
    own = SNP_EXTENDED_TCB.hex()
    if version >= 6:
        assert judged(guest, extended_tcb=["00" * 32, own])["extended TCB"] == "allowed"
    else:
        with pytest.raises(TcbStatusRefused):
            judged(guest, extended_tcb=[own])
    with pytest.raises(TcbStatusRefused) as refused:
        judged(guest, extended_tcb=["00" * 32])
    assert refused.value.check == "extended TCB"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_platform_without_the_flags_that_are_asked_for_is_refused(version: int) -> None:
    guest = guest_of(version)
    found = judged(guest, platform_flags=["alias_check_complete", "ecc"])
    assert found["platform flags"] == "allowed"
    for flag in ("ciphertext_hiding", "tsme", "rapl_disabled", "smt", "tio"):
        with pytest.raises(PlatformMismatch) as refused:
            judged(guest, platform_flags=["ecc", flag])
        assert refused.value.check == "platform flags"


# --- Revocation -----------------------------------------------------------------------------------


def test_a_bare_report_meets_required_revocation_with_a_list_beside_it() -> None:
    guest = guest_of(3)
    demanding, exhibit = rules(guest, revocation="require"), recognise(guest.report(ASKED, COMPOSE))
    beside = Attachments(certificates=guest.certificates(), crl=guest.revocations(NOW))
    found = examine(exhibit, beside, demanding, NOW)
    assert {
        claim.outcome for claim in found.submods["cpu0"].claims if claim.name == "revocation"
    } == {"equal"}
    kept = recognise(make_bundle(exhibit, beside, demanding, NOW).to_bytes())
    assert (
        examine(*unwrap_bundle(kept, Attachments()), demanding, NOW).identities == found.identities
    )
    with pytest.raises(RevocationUnknown):
        examine(exhibit, Attachments(certificates=guest.certificates()), demanding, NOW)


def test_own_evidence_is_held_against_the_verifiers_own_list() -> None:
    """A host may bring the oldest list that is still in its time; the verifier has a newer one."""
    from sealtrain.attest.evidence import Evidence
    from sealtrain.attest.report_data import Binding

    guest, asked = guest_of(3), Binding("attest", {"nonce": "07" * 16})
    shown = guest.show(asked.report_data(), COMPOSE, now=NOW)
    exhibit = recognise(Evidence.build("simulator", app_compose=COMPOSE, **shown).to_bytes())
    demanding = rules(guest, revocation="require")
    newer = guest.revocations(NOW, issuer_revoked=True)
    for binding in (None, asked):
        examine(exhibit, Attachments(binding=binding), demanding, NOW)
        with pytest.raises(CertificateRevoked):
            examine(exhibit, Attachments(binding=binding, crl=newer), demanding, NOW)


@pytest.mark.parametrize("days", [-1, 31])
def test_a_list_of_another_time_is_none(days: int) -> None:
    guest = guest_of(3)
    beside = Attachments(certificates=guest.certificates(), crl=guest.revocations(NOW))
    with pytest.raises(RevocationUnknown):
        examine(
            recognise(guest.report(ASKED, COMPOSE)),
            beside,
            rules(guest, revocation="require"),
            NOW + days * 86400,
        )


def test_a_list_that_somebody_else_signed_is_none() -> None:
    guest, stranger = guest_of(3), SimulatedSnp(b"another vendor of the same name")
    good = guest.revocations(NOW)
    exhibit, demanding = recognise(guest.report(ASKED, COMPOSE)), rules(guest, revocation="require")
    for crl in (
        stranger.revocations(NOW),
        good[:-1],
        good + b"\0",
        b"",
        *(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :] for at in range(0, len(good), 7)),
    ):
        with pytest.raises((RevocationUnknown, CertificateRevoked)):
            examine(
                exhibit, Attachments(certificates=guest.certificates(), crl=crl), demanding, NOW
            )


def test_lists_as_amd_signs_them_are_read() -> None:
    """RSA-4096 with PSS and SHA-384, as the certificates; the simulator's keys are elliptic."""
    from datetime import UTC, datetime, timedelta

    from cryptography.x509.oid import NameOID

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pss = padding.PSS(padding.MGF1(hashes.SHA384()), padding.PSS.DIGEST_LENGTH)
    made = datetime.fromtimestamp(NOW, UTC)

    def certificate(name: str, serial: int, public: Any) -> x509.Certificate:
        names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, n)]) for n in (name, "ARK")]
        builder = x509.CertificateBuilder(names[1], names[0], public, serial)
        builder = builder.not_valid_before(made).not_valid_after(made + timedelta(days=9))
        return builder.sign(key, hashes.SHA384(), rsa_padding=pss)

    root, issuer = certificate("ARK", 7, key.public_key()), certificate("ASK", 8, key.public_key())
    leaf = certificate("VCEK", 9, ec.generate_private_key(ec.SECP384R1()).public_key())
    chain = tuple(certificate.public_bytes(Encoding.DER) for certificate in (leaf, issuer, root))

    def listed(*serials: int) -> bytes:
        builder = x509.CertificateRevocationListBuilder(
            root.subject, made, made + timedelta(days=5)
        ).add_extension(x509.CRLNumber(4), critical=False)
        for serial in serials:
            one = x509.RevokedCertificateBuilder(serial, made).build()
            builder = builder.add_revoked_certificate(one)
        return builder.sign(key, hashes.SHA384(), rsa_padding=pss).public_bytes(Encoding.DER)

    assert check_revocation(chain, listed(), now=NOW) == NOW
    assert check_revocation(chain, listed(10, 11), now=NOW + 1) == NOW
    for serial in (7, 8, 9):
        with pytest.raises(CertificateRevoked):
            check_revocation(chain, listed(10, serial), now=NOW)
