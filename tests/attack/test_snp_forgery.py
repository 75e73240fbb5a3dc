"""Forged, altered, borrowed and honest-but-refused SEV-SNP evidence: each ends in its own error."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID, ObjectIdentifier
from exhibit_world import real_chain, real_report
from guests import require_rules, verified_guest
from policies import snp

from sealtrain.attest.claims import Claim
from sealtrain.attest.errors import (
    CertificateChainInvalid,
    CertificateRevoked,
    CollateralMismatch,
    ComposeHashMismatch,
    DebugGuest,
    MeasurementMismatch,
    MigratableGuest,
    PlatformMismatch,
    QuoteInvalid,
    QuoteRootUntrusted,
    SimulatedEvidence,
    TcbStatusRefused,
)
from sealtrain.attest.snp import chain as chains
from sealtrain.attest.snp.appraise import RULES
from sealtrain.attest.snp.parse import REPORT_BYTES, SIGNED_BYTES, parse_report
from sealtrain.attest.snp.policy import SnpPolicy
from sealtrain.attest.snp.verify import verify_report
from sealtrain.errors import EvidenceRefused
from sealtrain_rehearsal.simulator.snp import SNP_FAULTS, SimulatedSnp

pytestmark = pytest.mark.claim("C14")

NOW = 1_800_000_000
SEED = b"attacks on snp, simulated"
COMPOSE = b'{"name":"attacked"}'
ASKED = bytes(range(64))
LEVELS = {"bootloader": 10, "tee": 1, "snp": 23, "microcode": 200}
P384_ORDER = int(
    "ffffffffffffffffffffffffffffffffffffffffffffffffc7634d81f4372ddf581a0db248b0a77aecec196accc52973",
    16,
)
AMD = "1.3.6.1.4.1.3704.1"
GENOA_LEVELS = {
    f"{AMD}.2": b"\x16\x05Genoa",
    f"{AMD}.3.1": b"\x02\x01\x0a",
    f"{AMD}.3.2": b"\x02\x01\x01",
    f"{AMD}.3.3": b"\x02\x01\x17",
    f"{AMD}.3.8": b"\x02\x02\x00\xc8",
}


@pytest.fixture(scope="module")
def guest() -> SimulatedSnp:
    return SimulatedSnp(SEED)


@pytest.fixture(scope="module")
def policy(guest: SimulatedSnp) -> SnpPolicy:
    rules = snp(minimum_tcb={"Genoa": LEVELS}, chip_ids=[guest.chip_id], revocation="require")
    return SnpPolicy.model_validate_json(json.dumps(rules))


def judge(
    guest: SimulatedSnp,
    policy: SnpPolicy,
    *,
    fault: str | None = None,
    root: bytes | None = b"",
    report: bytes | None = None,
    certificates: tuple[bytes, ...] | None = None,
    compose: bytes = COMPOSE,
) -> tuple[Claim, ...]:
    verified = verified_guest(
        "snp",
        {
            "report_bytes": guest.report(ASKED, COMPOSE, fault=fault) if report is None else report,
            "certificates_der": guest.certificates(fault=fault)
            if certificates is None
            else certificates,
        },
        compose,
        policy,
        simulator_root=guest.root_der if root == b"" else root,
        now=NOW,
        crl=guest.revocations(NOW, issuer_revoked=fault == "revoked-issuer"),
    )
    return require_rules(RULES, verified.signed, policy, NOW)


def test_the_guest_under_attack_is_accepted(guest: SimulatedSnp, policy: SnpPolicy) -> None:
    """Every refusal below is a refusal of this very guest, changed."""
    assert len(judge(guest, policy)) == 16


@pytest.mark.parametrize(
    ("fault", "error", "check"),
    [
        pytest.param("debug-bit", DebugGuest, "debug", marks=pytest.mark.negative(37)),
        pytest.param(
            "migration-agent", MigratableGuest, "migration", marks=pytest.mark.negative(37)
        ),
        pytest.param("wrong-chip", CollateralMismatch, "chip id", marks=pytest.mark.negative(38)),
        pytest.param(
            "bad-signature", QuoteInvalid, "report signature", marks=pytest.mark.negative(38)
        ),
        pytest.param("masked-chip-id", PlatformMismatch, "chip", marks=pytest.mark.negative(39)),
        pytest.param("milan", PlatformMismatch, "product", marks=pytest.mark.negative(40)),
        pytest.param("vmpl-1", PlatformMismatch, "VMPL", marks=pytest.mark.negative(40)),
        pytest.param("old-tcb", TcbStatusRefused, "reported TCB", marks=pytest.mark.negative(41)),
        pytest.param(
            "committed-below-reported",
            TcbStatusRefused,
            "committed TCB",
            marks=pytest.mark.negative(41),
        ),
        ("wrong-root", QuoteRootUntrusted, "root"),
        ("revoked-issuer", CertificateRevoked, "revocation"),
        ("other-image", MeasurementMismatch, "guest image"),
    ],
)
def test_every_lie_of_the_simulator_ends_in_its_own_refusal(
    guest: SimulatedSnp, policy: SnpPolicy, fault: str, error: type[EvidenceRefused], check: str
) -> None:
    with pytest.raises(error) as caught:
        judge(guest, policy, fault=fault)
    assert type(caught.value) is error
    assert caught.value.check == check


def test_no_lie_is_left_out() -> None:
    marks = test_every_lie_of_the_simulator_ends_in_its_own_refusal.pytestmark
    told = {getattr(row, "values", row)[0] for row in marks[0].args[1]}
    assert told == set(SNP_FAULTS)


@pytest.mark.negative(39)
def test_a_key_that_a_cloud_shares_is_refused_where_a_chip_is_asked_for(policy: SnpPolicy) -> None:
    cloud = SimulatedSnp(SEED, signing_key="vlek")
    with pytest.raises(PlatformMismatch) as caught:
        judge(cloud, policy)
    assert caught.value.check == "signing key"
    allowed = policy.model_copy(update={"signing_keys": ("vcek", "vlek")})
    judge(cloud, allowed)
    with pytest.raises(PlatformMismatch) as caught:
        judge(cloud, allowed, fault="masked-chip-id")
    assert caught.value.check == "chip"


@pytest.mark.negative(38)
def test_a_certificate_of_another_tcb_is_refused(guest: SimulatedSnp, policy: SnpPolicy) -> None:
    """Before or after an update, with a signature that holds: the leaf's levels must be today's."""
    for report, leaf in ((None, "old-tcb"), ("old-tcb", None)):
        with pytest.raises(CollateralMismatch) as caught:
            judge(
                guest,
                policy,
                report=guest.report(ASKED, COMPOSE, fault=report),
                certificates=guest.certificates(fault=leaf),
            )
        assert caught.value.check == "TCB of the certificate"


@pytest.mark.negative(38)
def test_a_certificate_of_another_machine_is_refused(
    guest: SimulatedSnp, policy: SnpPolicy
) -> None:
    """Same vendor, same levels; the other machine even hides its number."""
    other = Forge(guest)
    other.leaf_key = ec.derive_private_key(12345, ec.SECP384R1())
    for fault in (None, "masked-chip-id"):
        with pytest.raises((CollateralMismatch, QuoteInvalid)):
            judge(
                guest,
                policy,
                report=guest.report(ASKED, COMPOSE, fault=fault),
                certificates=other.chain(chip=bytes(range(64))),
            )


@pytest.mark.negative(41)
def test_each_level_has_its_own_floor(guest: SimulatedSnp, policy: SnpPolicy) -> None:
    for name in LEVELS:
        floor = policy.minimum_tcb["Genoa"].model_copy(update={name: LEVELS[name] + 1})
        raised = policy.model_copy(update={"minimum_tcb": {"Genoa": floor}})
        with pytest.raises(TcbStatusRefused) as caught:
            judge(guest, raised)
        assert caught.value.check == "reported TCB"


@pytest.mark.negative(41)
def test_a_guest_that_older_firmware_launched_is_refused(
    guest: SimulatedSnp, policy: SnpPolicy
) -> None:
    launched = Forge(guest).report({0x1F0: bytes([9])})
    with pytest.raises(TcbStatusRefused) as caught:
        judge(guest, policy, report=launched)
    assert caught.value.check == "launch TCB"


@pytest.mark.parametrize(
    ("changes", "error", "check"),
    [
        ({"chip_ids": ("11" * 64,)}, PlatformMismatch, "chip"),
        ({"smt": "refuse"}, PlatformMismatch, "simultaneous threads"),
        ({"vmpl": 3}, PlatformMismatch, "VMPL"),
        ({"id_keys": ("22" * 48,)}, MeasurementMismatch, "launch authority"),
        ({"measurements": ("33" * 48,)}, MeasurementMismatch, "guest image"),
    ],
)
def test_a_rule_that_does_not_fit_refuses(
    guest: SimulatedSnp,
    policy: SnpPolicy,
    changes: dict[str, Any],
    error: type[EvidenceRefused],
    check: str,
) -> None:
    with pytest.raises(error) as caught:
        judge(guest, policy.model_copy(update=changes))
    assert caught.value.check == check


def test_an_author_key_counts_only_where_the_firmware_looked_at_it(
    guest: SimulatedSnp, policy: SnpPolicy
) -> None:
    forge, author = Forge(guest), b"\x22" * 48
    strict = policy.model_copy(update={"id_keys": (author.hex(),)})
    judge(guest, strict, report=forge.report({0x110: author, 0x48: b"\x01"}))
    judge(guest, strict, report=forge.report({0xE0: author}))
    with pytest.raises(MeasurementMismatch):
        judge(guest, strict, report=forge.report({0x110: author}))


def test_a_guest_that_a_migration_agent_holds_is_refused(
    guest: SimulatedSnp, policy: SnpPolicy
) -> None:
    with pytest.raises(MigratableGuest):
        judge(guest, policy, report=Forge(guest).report({0x160: bytes(32)}))


def test_another_deployment_document_is_refused(guest: SimulatedSnp, policy: SnpPolicy) -> None:
    for document in (b"", COMPOSE + b"\n", COMPOSE[:-1]):
        with pytest.raises(ComposeHashMismatch):
            judge(guest, policy, compose=document)


def test_simulated_evidence_never_passes_for_hardware(
    guest: SimulatedSnp, policy: SnpPolicy
) -> None:
    for fault in (None, "wrong-root"):
        with pytest.raises(SimulatedEvidence):
            judge(guest, policy, fault=fault, root=None)


def test_hardware_never_passes_for_a_simulator(
    shared: Path, guest: SimulatedSnp, policy: SnpPolicy
) -> None:
    report, certificates = genoa(shared)
    with pytest.raises(QuoteRootUntrusted):
        judge(guest, policy, report=report, certificates=certificates)


def genoa(shared: Path) -> tuple[bytes, tuple[bytes, ...]]:
    """Report and certificates of a real machine."""
    name = "genoa_azure_v3"
    return real_report(shared, name), real_chain(shared, name, "genoa")


def test_no_altered_byte_of_a_real_report_is_accepted(shared: Path) -> None:
    """Every byte, also those behind the signature, which nothing signs and which must be zero."""
    report, certificates = genoa(shared)
    for at in range(REPORT_BYTES):
        altered = bytearray(report)
        altered[at] ^= 1 << at % 8
        with pytest.raises(EvidenceRefused):
            verify_report(bytes(altered), certificates, simulator_root=None, now=NOW)


def test_no_altered_byte_of_a_real_chain_is_accepted(shared: Path) -> None:
    report, certificates = genoa(shared)
    for index, step in ((0, 1), (1, 3), (2, 3)):
        for at in range(0, len(certificates[index]), step):
            altered = bytearray(certificates[index])
            altered[at] ^= 1 << at % 8
            chain = [*certificates]
            chain[index] = bytes(altered)
            with pytest.raises(EvidenceRefused):
                verify_report(report, tuple(chain), simulator_root=None, now=NOW)


def test_no_truncated_or_extended_part_is_accepted(shared: Path) -> None:
    report, certificates = genoa(shared)
    for size in range(REPORT_BYTES):
        with pytest.raises(QuoteInvalid):
            parse_report(report[:size])
    for more in (b"\0", bytes(4096)):
        with pytest.raises(QuoteInvalid):
            parse_report(report + more)
    for index in range(3):
        for altered in (certificates[index] + b"\0", certificates[index][:-1], b"", bytes(5000)):
            chain = [*certificates]
            chain[index] = altered
            with pytest.raises((CertificateChainInvalid, QuoteRootUntrusted)):
                verify_report(report, tuple(chain), simulator_root=None, now=NOW)
    leaf, issuer, root = certificates
    for wrong in (
        (),
        (leaf,),
        (leaf, issuer),
        (*certificates, root),
        (root, issuer, leaf),
        (issuer, leaf, root),
        (leaf, root, root),
        (issuer, issuer, root),
    ):
        with pytest.raises((CertificateChainInvalid, QuoteRootUntrusted)):
            verify_report(report, wrong, simulator_root=None, now=NOW)


def test_the_other_encoding_of_a_signature_is_the_same_report(guest: SimulatedSnp) -> None:
    """ECDSA signatures have two forms: the identity must not tell them apart."""
    raw = guest.report(ASKED, COMPOSE)
    mirrored = (P384_ORDER - parse_report(raw).s).to_bytes(72, "little")
    other = raw[: SIGNED_BYTES + 72] + mirrored + raw[SIGNED_BYTES + 144 :]
    assert other != raw
    found = [
        verify_report(
            value, guest.certificates(), simulator_root=guest.root_der, now=NOW
        ).report.identity
        for value in (raw, other)
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize(("r", "s"), [(0, 1), (1, 0), (0, 0), (P384_ORDER, 1), (1 << 575, 1)])
def test_a_degenerate_signature_is_refused(guest: SimulatedSnp, r: int, s: int) -> None:
    raw = guest.report(ASKED, COMPOSE)
    forged = raw[:SIGNED_BYTES] + r.to_bytes(72, "little") + s.to_bytes(72, "little") + bytes(368)
    with pytest.raises(QuoteInvalid):
        verify_report(forged, guest.certificates(), simulator_root=guest.root_der, now=NOW)


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (0, b"\x01"),
        (0, b"\x07"),
        (1, b"\x01"),
        (0x0A, b"\x01"),  # bit 17 of the policy
        (0x34, b"\x02"),
        (0x30, b"\xff\xff\xff\xff"),  # what firmware writes where the host asked
        (0x48, b"\x1c"),  # signed by nobody
        (0x48, b"\x08"),
    ],
)
def test_a_well_signed_report_of_an_unknown_form_is_refused(
    guest: SimulatedSnp, at: int, value: bytes
) -> None:
    raw = Forge(guest).report({at: value})
    with pytest.raises(QuoteInvalid) as caught:
        verify_report(raw, guest.certificates(), simulator_root=guest.root_der, now=NOW)
    assert caught.value.check == "report structure"


def test_a_report_of_another_processor_than_its_certificate_is_refused(
    guest: SimulatedSnp,
) -> None:
    for numbers in (b"\x19\x01\x01", b"\x1a\x02\x01", b"\x17\x31\x00"):
        raw = Forge(guest).report({0x188: numbers})
        with pytest.raises(CollateralMismatch) as caught:
            verify_report(raw, guest.certificates(), simulator_root=guest.root_der, now=NOW)
        assert caught.value.check == "product"


def test_a_report_that_names_another_kind_of_key_is_refused(guest: SimulatedSnp) -> None:
    raw = Forge(guest).report({0x48: b"\x04"})
    with pytest.raises(CertificateChainInvalid) as caught:
        verify_report(raw, guest.certificates(), simulator_root=guest.root_der, now=NOW)
    assert caught.value.check == "signing key"


class Forge:
    """Somebody who holds the keys of the simulated vendor and writes what he likes."""

    def __init__(self, guest: SimulatedSnp) -> None:
        self.guest = guest
        self.root_key, self.issuer_key = guest.key("root"), guest.key("root:SEV-Genoa")
        self.leaf_key: Any = guest.key("root:vcek:Genoa")

    def report(self, changes: dict[int, bytes]) -> bytes:
        """A report with fields replaced, signed properly."""
        body = bytearray(self.guest.report(ASKED, COMPOSE)[:SIGNED_BYTES])
        for at, value in changes.items():
            body[at : at + len(value)] = value
        der = self.leaf_key.sign(bytes(body), ec.ECDSA(hashes.SHA384()))
        r, s = decode_dss_signature(der)
        return bytes(body) + r.to_bytes(72, "little") + s.to_bytes(72, "little") + bytes(368)

    def chain(
        self,
        *,
        chip: bytes | None = None,
        drop: str = "",
        values: dict[str, bytes] | None = None,
        leaf_name: str = "SIMULATED SEV-VCEK",
        issuer_name: str = "SIMULATED SEV-Genoa",
        authority: bool = True,
        signs: bool = True,
        leaf_authority: bool = False,
        extra: x509.ExtensionType | None = None,
        leaf_days: tuple[int, int] = (-10, 10),
        issuer_days: tuple[int, int] = (-10, 10),
        signer: Any = None,
    ) -> tuple[bytes, bytes, bytes]:
        found = dict(GENOA_LEVELS)
        found[f"{AMD}.4"] = bytes.fromhex(self.guest.chip_id) if chip is None else chip
        found.update(values or {})
        found.pop(drop, None)
        issuer = self._certificate(
            issuer_name, self.issuer_key, "SIMULATED ARK", self.root_key, issuer_days
        )
        if authority:
            issuer = issuer.add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        issuer = issuer.add_extension(usage(key_cert_sign=signs), True)
        leaf = self._certificate(leaf_name, self.leaf_key, issuer_name, self.issuer_key, leaf_days)
        if leaf_authority:
            leaf = leaf.add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        if extra is not None:
            leaf = leaf.add_extension(extra, True)
        for oid, value in found.items():
            leaf = leaf.add_extension(
                x509.UnrecognizedExtension(ObjectIdentifier(oid), value), False
            )
        signed = leaf.sign(self.issuer_key if signer is None else signer, hashes.SHA384())
        above = issuer.sign(self.root_key, hashes.SHA384())
        return (
            signed.public_bytes(Encoding.DER),
            above.public_bytes(Encoding.DER),
            (self.guest.root_der),
        )

    @staticmethod
    def _certificate(
        name: str, key: Any, issuer: str, issuer_key: Any, days: tuple[int, int]
    ) -> x509.CertificateBuilder:
        subject, above = (
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, value)]) for value in (name, issuer)
        )
        moment = datetime.fromtimestamp(NOW, UTC)
        return (
            x509.CertificateBuilder(above, subject, key.public_key(), 7)
            .not_valid_before(moment + timedelta(days=days[0]))
            .not_valid_after(moment + timedelta(days=days[1]))
        )


def usage(*, key_cert_sign: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )


def test_the_forge_can_make_a_chain_that_is_accepted(
    guest: SimulatedSnp, policy: SnpPolicy
) -> None:
    """Otherwise the refusals below would prove nothing."""
    judge(guest, policy, certificates=Forge(guest).chain())
    wrapped = b"\x04\x40" + bytes.fromhex(guest.chip_id)
    judge(guest, policy, certificates=Forge(guest).chain(chip=wrapped))


@pytest.mark.parametrize(
    "flaw",
    [
        {"drop": f"{AMD}.2"},
        {"drop": f"{AMD}.3.1"},
        {"drop": f"{AMD}.3.2"},
        {"drop": f"{AMD}.3.3"},
        {"drop": f"{AMD}.3.8"},
        {"drop": f"{AMD}.4"},
        {"values": {f"{AMD}.2": b"\x16\x05Milan"}},
        {"values": {f"{AMD}.2": b"\x16\x05Genoa\x00"}},
        {"values": {f"{AMD}.2": b"\x16\x06Genoa"}},
        {"values": {f"{AMD}.3.1": b"\x02\x02\x00\x0a"}},
        {"values": {f"{AMD}.3.1": b"\x02\x01\x0a\x00"}},
        {"values": {f"{AMD}.3.8": b"\x02\x01\xc8"}},
        {"values": {f"{AMD}.3.8": b"\x02\x03\x00\x00\xc8"}},
        {"chip": b""},
        {"chip": bytes(64)},
        {"chip": b"\x04\x41" + bytes(range(64))},
        {"leaf_name": "SIMULATED SEV-VLEK"},
        {"leaf_name": "SEV-VCEK"},
        {"issuer_name": "SIMULATED SEV-VLEK-Genoa"},
        {"issuer_name": "SIMULATED SEV-Rome"},
        {"issuer_name": "SEV-Genoa"},
        {"authority": False},
        {"signs": False},
        {"leaf_authority": True},
        {"extra": usage(key_cert_sign=False)},
        {"extra": x509.UnrecognizedExtension(ObjectIdentifier("1.2.3"), b"\x05\x00")},
        {"leaf_days": (-10, -1)},
        {"leaf_days": (1, 10)},
        {"issuer_days": (-10, -1)},
        {"issuer_days": (1, 10)},
        {"signer": ec.derive_private_key(12345, ec.SECP384R1())},
    ],
    ids=lambda flaw: next(iter(flaw)),
)
def test_a_chain_with_one_flaw_is_refused(
    guest: SimulatedSnp, policy: SnpPolicy, flaw: dict[str, Any]
) -> None:
    with pytest.raises(CertificateChainInvalid):
        judge(guest, policy, certificates=Forge(guest).chain(**flaw))


def test_a_leaf_on_another_curve_is_refused(guest: SimulatedSnp, policy: SnpPolicy) -> None:
    for curve in (ec.SECP256R1(), ec.SECP521R1()):
        forge = Forge(guest)
        forge.leaf_key = ec.derive_private_key(12345, curve)
        with pytest.raises(
            CertificateChainInvalid, check=carries(check="certificate chain", got="ECPublicKey")
        ):
            judge(guest, policy, certificates=forge.chain())


def test_real_authorities_do_not_lend_their_names(shared: Path) -> None:
    """The trusted certificates are public: putting them behind a forged leaf must not help."""
    guest = SimulatedSnp(SEED)
    leaf, issuer, root = real_chain(shared, "genoa_azure_v3", "genoa")
    forged = guest.report(ASKED, COMPOSE)
    mine = guest.certificates()
    for chain in ((mine[0], issuer, root), (mine[0], mine[1], root), (leaf, mine[1], root)):
        with pytest.raises(CertificateChainInvalid):
            verify_report(forged, chain, simulator_root=None, now=NOW)
    with pytest.raises((QuoteInvalid, CollateralMismatch)):
        verify_report(forged, (leaf, issuer, root), simulator_root=None, now=NOW)


def test_a_root_that_borrows_amds_name_is_refused() -> None:
    key = ec.derive_private_key(12345, ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ARK-Genoa")])
    moment = datetime.fromtimestamp(NOW, UTC)
    root = (
        x509.CertificateBuilder(name, name, key.public_key(), 7)
        .not_valid_before(moment - timedelta(days=1))
        .not_valid_after(moment + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA384())
        .public_bytes(Encoding.DER)
    )
    guest = SimulatedSnp(SEED)
    leaf, issuer, _ = guest.certificates()
    with pytest.raises(QuoteRootUntrusted):
        verify_report(
            guest.report(ASKED, COMPOSE), (leaf, issuer, root), simulator_root=None, now=NOW
        )


def test_hardware_authorities_are_rsa_whatever_is_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a simulator may use other keys: the rule stands by itself, apart from the pin."""
    guest = SimulatedSnp(SEED)
    pin = hashlib.sha256(guest.root_der).hexdigest()
    monkeypatch.setitem(chains.AMD_ROOT_SHA256, pin, "Genoa")
    with pytest.raises(
        CertificateChainInvalid, check=carries(check="certificate chain", got="ECPublicKey")
    ):
        verify_report(
            guest.report(ASKED, COMPOSE), guest.certificates(), simulator_root=None, now=NOW
        )


def test_what_was_remembered_does_not_outlive_its_dates(guest: SimulatedSnp) -> None:
    """Links are cached; a chain accepted a moment ago still ends when it ends."""
    chain = Forge(guest).chain(leaf_days=(-1, 1))

    def check(now: int) -> Callable[[], object]:
        return lambda: verify_report(
            guest.report(ASKED, COMPOSE), chain, simulator_root=guest.root_der, now=now
        )

    day = 86400
    for now in (NOW, NOW + day, NOW - day):
        check(now)()
    for now in (NOW + day + 1, NOW - day - 1):
        with pytest.raises(CertificateChainInvalid):
            check(now)()
    with pytest.raises(SimulatedEvidence):
        verify_report(guest.report(ASKED, COMPOSE), chain, simulator_root=None, now=NOW)
