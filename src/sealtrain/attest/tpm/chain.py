"""Google's chain: EK/AK CA Root (pinned) → EK/AK CA Intermediate → a machine's attestation key.

Checked one by one, as for the other vendors:

1. root: byte for byte the pinned one, or the simulator's;
2. every certificate parses, has no critical extension that is not looked at here, and is valid at
   the verification time (both ends included);
3. every link: issuer name is subject name, signed by the issuer; hardware's issuers are RSA of at
   least 2048 bits with PKCS #1 1.5 and SHA-256;
4. issuers are authorities that may sign certificates, within their path length; the leaf is none,
   and may sign;
5. the leaf names its machine (``MACHINE_OID``), and that Google made it for production.

Certificates live for decades and name no revocation list but the root's, in the intermediate. It is
not read: spec/evidence-tpm.md §2 says what that means, and each verdict says so.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import SignatureAlgorithmOID

from sealtrain.attest.errors import (
    CertificateChainInvalid,
    DebugGuest,
    EvidenceMalformed,
    QuoteInvalid,
)
from sealtrain.attest.roots import (
    CHAIN_ERRORS,
    GOOGLE_EKAK_ROOT_SHA256,
    ChainLink,
    VendorRoot,
    is_simulated_certificate,
    load_link,
    read_link,
)
from sealtrain.attest.tpm.byte_cursor import Octets
from sealtrain.attest.tpm.quote import AttestationKey, check_key

MACHINE_OID: Final = "1.3.6.1.4.1.11129.2.1.21"
"""Google's extension: zone, project, instance, and whether the key was made for production."""
MAX_AK_CERTIFICATES: Final = 4
MAX_AK_CERTIFICATE_BYTES: Final = 4096
_OF = "attestation key"
_MIN_RSA_BITS = 2048
_SEQUENCE, _INTEGER, _BOOLEAN, _UTF8 = 0x30, 0x02, 0x01, 0x0C
_PROPERTIES, _VERSION, _PRODUCTION = 0xA0, 0xA0, 0xA1


@dataclass(frozen=True, slots=True, kw_only=True)
class GoogleMachine:
    """The machine that a vTPM belongs to, as Google's certificate names it."""

    zone: str
    project_number: int
    project: str
    instance_id: int
    instance: str
    production: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedKey:
    """An attestation key whose chain holds at a moment."""

    key: AttestationKey
    machine: GoogleMachine
    simulated: bool
    valid_from: int
    valid_until: int


def verify_key_chain(
    certificates: tuple[bytes, ...], *, simulator_root: bytes | None, now: int
) -> VerifiedKey:
    """Verify an attestation key's chain at a moment.

    Args:
        certificates: DER, the key's own first, the root last.
        simulator_root: The one software root to trust, or ``None`` for Google's.
        now: Verification time, seconds since 1970.

    Raises:
        SimulatedEvidence: A simulator's root where hardware is asked for.
        QuoteRootUntrusted: Another foreign root.
        CertificateChainInvalid: One of the checks above fails.
        DebugGuest: Google did not make the key for production.
        QuoteInvalid: The key is of another kind than a TPM signs quotes with.
    """
    if not 2 <= len(certificates) <= MAX_AK_CERTIFICATES or any(
        len(der) > MAX_AK_CERTIFICATE_BYTES for der in certificates
    ):
        raise CertificateChainInvalid(
            "chain of the attestation key has another length",
            check="certificate chain",
            got=f"{len(certificates)} certificates",
            expected=f"2 to {MAX_AK_CERTIFICATES}, {MAX_AK_CERTIFICATE_BYTES} bytes each at most",
        )
    simulated = _GOOGLE.admit(certificates[-1], simulator_root)
    links = _links(certificates, simulated)
    for link in links:
        if not link.start <= now <= link.end:
            raise CertificateChainInvalid(
                f"certificate {link.name!r} is not valid at the verification time",
                check="certificate dates",
                got=now,
                expected=f"{link.start} to {link.end}",
            )
    machine = _machine_of(links[0])
    if not machine.production:
        raise DebugGuest(
            "the attestation key was not made for production",
            check="attestation key",
            got="test",
            expected="production",
        )
    return VerifiedKey(
        key=check_key(links[0].key),
        machine=machine,
        simulated=simulated,
        valid_from=max(link.start for link in links),
        valid_until=min(link.end for link in links),
    )


def parse_machine(value: bytes) -> GoogleMachine:
    """Read Google's extension (DER).

    Raises:
        EvidenceMalformed: Another structure.
    """
    fields = _Der(_Der(value).only(_SEQUENCE))
    zone = fields.text()
    project_number = fields.natural()
    project = fields.text()
    instance_id = fields.natural()
    instance = fields.text()
    production = False
    if fields.octets.left:
        properties = _Der(_Der(fields.content(_PROPERTIES)).only(_SEQUENCE))
        before = 0
        while properties.octets.left:
            tag, held = properties.element()
            if tag <= before:
                raise properties.octets.malformed_error("its properties are not in order")
            before = tag
            if tag == _VERSION:
                version = _Der(held)
                version.natural()
                version.octets.finish()
            elif tag == _PRODUCTION:
                production = _Der(held).truth()
        fields.octets.finish()
    return GoogleMachine(
        zone=zone,
        project_number=project_number,
        project=project,
        instance_id=instance_id,
        instance=instance,
        production=production,
    )


class _Der:
    """DER elements of Google's extension, short lengths and one or two bytes of long ones."""

    __slots__ = ("octets",)

    def __init__(self, data: bytes) -> None:
        self.octets = Octets(data, "machine's name")

    def element(self) -> tuple[int, bytes]:
        tag, length = self.octets.number(1), self.octets.number(1)
        if length >= 0x80:
            size = length & 0x7F
            if size not in (1, 2):
                raise self.octets.malformed_error("a length is not DER")
            length = self.octets.number(size)
            if length < (0x80 if size == 1 else 0x100):
                raise self.octets.malformed_error("a length is not in its shortest form")
        return tag, self.octets.take(length)

    def content(self, expected: int) -> bytes:
        tag, held = self.element()
        if tag != expected:
            raise self.octets.malformed_error("a field is of another type")
        return held

    def only(self, expected: int) -> bytes:
        held = self.content(expected)
        self.octets.finish()
        return held

    def natural(self) -> int:
        held = self.content(_INTEGER)
        if not 1 <= len(held) <= 9 or held[0] & 0x80 or (len(held) > 1 and held[:2] < b"\x00\x80"):
            raise self.octets.malformed_error("a number is negative or not in its shortest form")
        return int.from_bytes(held, "big")

    def truth(self) -> bool:
        held = self.only(_BOOLEAN)
        if held not in (b"\0", b"\xff"):
            raise self.octets.malformed_error("a truth value is neither yes nor no")
        return held == b"\xff"

    def text(self) -> str:
        held = self.content(_UTF8)
        if not 1 <= len(held) <= 128 or not all(0x20 < byte < 0x7F for byte in held):
            raise self.octets.malformed_error("a name is not of printable ASCII")
        return held.decode("ascii")


def _is_simulated(root: bytes) -> bool:
    try:
        return is_simulated_certificate(root)
    except QuoteInvalid:
        return False


_GOOGLE = VendorRoot(
    pins=(GOOGLE_EKAK_ROOT_SHA256,),
    subject="TPM quote",
    name="Google EK/AK CA Root",
    foreign=f"Google EK/AK CA Root {GOOGLE_EKAK_ROOT_SHA256[:16]}…",
    is_simulated=_is_simulated,
    simulator_hint="use the root of the simulator's own state folder",
)


@lru_cache(maxsize=64)
def _links(certificates: tuple[bytes, ...], simulated: bool) -> tuple[ChainLink, ...]:
    """The chain without its dates, leaf first; remembered by exact bytes, refusals never are."""
    links = tuple(read_link(load_link(der, _OF), _OF) for der in certificates)
    for depth, (below, above) in enumerate(itertools.pairwise(links)):
        above.check_authority(below=depth)
        _check_issued(below, above, simulated)
    links[0].check_end_entity()
    if links[0].signs_certificates:
        raise links[0].refuse_misplaced("may sign certificates", "may not")
    return links


def _check_issued(below: ChainLink, above: ChainLink, simulated: bool) -> None:
    certificate = below.certificate
    try:
        if not simulated:
            key = above.key
            if not isinstance(key, rsa.RSAPublicKey) or key.key_size < _MIN_RSA_BITS:
                raise above.refuse_misplaced("another kind of key", "RSA of at least 2048 bits")
            if certificate.signature_algorithm_oid != SignatureAlgorithmOID.RSA_WITH_SHA256:
                raise below.refuse_misplaced("another signature", "PKCS #1 1.5 with SHA-256")
        elif not isinstance(certificate.signature_hash_algorithm, hashes.SHA256):
            raise below.refuse_misplaced("another signature", "SHA-256")
        certificate.verify_directly_issued_by(above.certificate)
    except (InvalidSignature, *CHAIN_ERRORS) as error:
        raise CertificateChainInvalid(
            "a certificate of the attestation key's chain was not signed by the next one",
            check="certificate chain",
        ) from error


def _machine_of(leaf: ChainLink) -> GoogleMachine:
    for extension in leaf.certificate.extensions:
        value = extension.value
        if extension.oid.dotted_string == MACHINE_OID and isinstance(
            value, x509.UnrecognizedExtension
        ):
            try:
                return parse_machine(value.value)
            except EvidenceMalformed as error:
                raise leaf.refuse_misplaced(
                    "a machine's name of another form", MACHINE_OID
                ) from error
    raise leaf.refuse_misplaced("no machine", MACHINE_OID)
