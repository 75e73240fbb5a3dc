"""Certificate chains of NVIDIA accelerators: exactly five certificates, leaf first.

    firmware key ◄ device ◄ provisioner ◄ family ◄ NVIDIA Device Identity CA (pinned)

1. One PEM spelling. 2. The last certificate is the trusted root, byte for byte. 3. Every key is
P-384, every signature ECDSA with SHA-384. 4. Each certificate is issued by the next. 5. Those above
the leaf are authorities that may sign certificates, within their path length; the leaf is not one
and may sign. 6. ``now`` lies in the validity of each; NVIDIA's end in the year 9999, so revocation
lives elsewhere (``ocsp``). 7. No critical extension that is not understood here.

What a certificate may do and whom it issued are facts about byte strings, so they are remembered:
links above the devices are shared by thousands of them, and a lease is renewed by the same ones.
Dates are looked at every time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import get_args

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtensionOID, NameOID, SignatureAlgorithmOID

from sealtrain.attest.errors import CertificateChainInvalid
from sealtrain.attest.nvidia.fwid import is_dice, read_fwid
from sealtrain.attest.nvidia.parse import Architecture
from sealtrain.attest.roots import (
    X509_ERRORS,
    VendorRoot,
    certificates_of_pem,
    is_simulated_certificate,
    load_certificate,
)
from sealtrain.base.clock import to_rfc3339
from sealtrain.errors import DataInvalid, EvidenceRefused

NVIDIA_ROOT_SHA256 = "102bf659d5419614c9d8e6aecebc80454eb26b1df6a769ac720b9a690b167b48"
"""SHA-256 of the certificate ``NVIDIA Device Identity CA`` (DER)."""

CHAIN_LENGTH = 5
_REMEMBERED = 256  # certificates, and links: 64 devices
_ARCHITECTURES: dict[str, Architecture] = {"GH": "HOPPER", "GB": "BLACKWELL", "LS": "LS10"}
_SIMULATED = "SIMULATED "
_UNDERSTOOD = (ExtensionOID.BASIC_CONSTRAINTS, ExtensionOID.KEY_USAGE)
_IDENTITY = re.compile(r"(?:41|50)([0-9a-f]{16})")  # of a GPU, of a switch


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceChain:
    """A chain that holds.

    Attributes:
        certificates: DER, leaf first, root last.
        key: The leaf's key, which signs reports.
        architecture: Family the device's own certificate names.
        chip: Chip as the vendor spells it in file names: ``GH100``, ``LS10``.
        hwmodel: Common name of the device's certificate.
        ueid: Serial number attribute of the leaf, lower-case hex.
        device_serial: Serial number attribute of the device's certificate, lower-case hex; it
            stays when firmware changes.
        pdi: The eight bytes of ``device_serial`` by which GPUs and switches name each other, hex;
            empty where it has another form.
        fwid: Digest of the firmware the leaf's key was made for, ``None`` where it names none.
        simulated: Whether the root is a simulator's.
    """

    certificates: tuple[bytes, ...]
    key: ec.EllipticCurvePublicKey
    architecture: Architecture
    chip: str
    hwmodel: str
    ueid: str
    device_serial: str
    pdi: str
    fwid: bytes | None
    simulated: bool


def verify_chain(pem: str, *, simulator_root: bytes | None, now: int) -> DeviceChain:
    """Verify a chain at a moment.

    Args:
        pem: Five certificates in the one accepted spelling.
        simulator_root: Trusted software root (DER); ``None`` for NVIDIA's pinned root.
        now: Verification time, seconds since 1970.

    Raises:
        SimulatedEvidence: A simulator's chain where hardware is asked for.
        QuoteRootUntrusted: The chain ends in another root.
        CertificateChainInvalid: Anything else that does not hold.
    """
    try:
        certificates = certificates_of_pem(pem.encode("ascii"), limit=CHAIN_LENGTH)
    except (DataInvalid, UnicodeEncodeError) as error:
        raise _refusal("certificate chain is not in its one PEM spelling") from error
    _NVIDIA.admit(certificates[-1], simulator_root)
    if len(certificates) != CHAIN_LENGTH:
        raise _refusal(
            "certificate chain has another length",
            got=f"{len(certificates)} certificates",
            expected=f"{CHAIN_LENGTH}",
        )
    loaded = tuple(_load(der) for der in certificates)
    leaf, device = loaded[:2]
    for depth, certificate in enumerate(loaded):
        _check_dates(certificate, now)
        _check_role(certificates[depth], depth)
    for child, issuer in pairwise(certificates):
        _check_link(child, issuer)
    hwmodel = _one(device, NameOID.COMMON_NAME)
    chip = hwmodel.removeprefix(_SIMULATED).split(" ")[0]
    architecture = _ARCHITECTURES.get(chip[:2])
    named = _one(leaf, NameOID.COMMON_NAME).removeprefix(_SIMULATED).split(" ")[0]
    if architecture is None or named != chip:
        raise _refusal(
            "certificates name no accelerator this release knows",
            got=f"{named} under {chip}"[:80],
            expected=", ".join(get_args(Architecture)),
        )
    device_serial = _serial(device)
    identity = _IDENTITY.fullmatch(device_serial)
    return DeviceChain(
        certificates=certificates,
        key=_key(leaf),
        architecture=architecture,
        chip=chip.replace("_", ""),
        hwmodel=hwmodel,
        ueid=_serial(leaf),
        device_serial=device_serial,
        pdi="" if identity is None else identity[1],
        fwid=read_fwid(leaf),
        simulated=simulator_root is not None,
    )


def read_architecture(certificates: tuple[bytes, ...]) -> Architecture:
    """Family that a chain's second certificate names; a claim until the chain is verified.

    Raises:
        CertificateChainInvalid: Too short, unreadable, or of no accelerator this release knows.
    """
    if len(certificates) < 2:
        raise _refusal("certificate chain has another length", expected=f"{CHAIN_LENGTH}")
    named = _one(_load(certificates[1]), NameOID.COMMON_NAME).removeprefix(_SIMULATED)
    if named[:2] not in _ARCHITECTURES:
        raise _refusal("certificates name no accelerator this release knows", got=named[:80])
    return _ARCHITECTURES[named[:2]]


def _refusal(
    message: str, *, got: object = None, expected: object = None
) -> CertificateChainInvalid:
    return CertificateChainInvalid(
        message, check="GPU certificate chain", got=got, expected=expected
    )


def _is_simulated(der: bytes) -> bool:
    try:
        return is_simulated_certificate(der)
    except EvidenceRefused as error:
        raise _refusal("root certificate cannot be parsed") from error


_NVIDIA = VendorRoot(
    pins=(NVIDIA_ROOT_SHA256,),
    subject="device",
    name="NVIDIA Device Identity CA",
    foreign="NVIDIA Device Identity CA",
    is_simulated=_is_simulated,
    what="accelerator",
    check="GPU root",
    simulator_hint=None,
)


@lru_cache(maxsize=_REMEMBERED)
def _load(der: bytes) -> x509.Certificate:
    try:
        certificate = load_certificate(der)
        # Parsed on first use; whatever is wrong with them must show here and nowhere later.
        _ = certificate.subject, certificate.issuer, certificate.extensions
    except (*X509_ERRORS, x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
        raise _refusal("certificate cannot be parsed") from error
    return certificate


def _check_dates(certificate: x509.Certificate, now: int) -> None:
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not start.timestamp() <= now <= end.timestamp():
        raise _refusal(
            "certificate is not valid at the verification time",
            got=to_rfc3339(now),
            expected=f"{start:%Y-%m-%d} to {end:%Y-%m-%d}",
        )


@lru_cache(maxsize=_REMEMBERED)
def _check_role(der: bytes, depth: int) -> None:
    """``depth`` certificates stand below this one, ``depth - 1`` of them authorities."""
    certificate = _load(der)
    constraints: x509.BasicConstraints | None = None
    usage: x509.KeyUsage | None = None
    for extension in certificate.extensions:
        if isinstance(extension.value, x509.BasicConstraints):
            constraints = extension.value
        elif isinstance(extension.value, x509.KeyUsage):
            usage = extension.value
        elif extension.critical and not is_dice(extension.oid):
            raise _refusal(
                "certificate has a critical extension that is not understood",
                got=extension.oid.dotted_string,
                expected=", ".join(oid.dotted_string for oid in _UNDERSTOOD),
            )
    _key(certificate)
    if usage is None:
        raise _refusal("certificate does not say what its key is for")
    authority = constraints is not None and constraints.ca
    if depth == 0:
        if authority or usage.key_cert_sign or not usage.digital_signature:
            raise _refusal("leaf is an authority, or its key may not sign reports")
        return
    if not authority or not usage.key_cert_sign:
        raise _refusal("issuer is no authority that may sign certificates")
    most = None if constraints is None else constraints.path_length
    if most is not None and depth - 1 > most:
        raise _refusal("certificate chain is longer than an authority allows", expected=most)


@lru_cache(maxsize=_REMEMBERED)
def _check_link(child_der: bytes, issuer_der: bytes) -> None:
    child, issuer = _load(child_der), _load(issuer_der)
    if child.signature_algorithm_oid != SignatureAlgorithmOID.ECDSA_WITH_SHA384:
        raise _refusal("certificate is not signed with ECDSA and SHA-384")
    try:
        child.verify_directly_issued_by(issuer)
    except (*X509_ERRORS, InvalidSignature) as error:
        raise _refusal("certificate is not issued by the next one") from error


def _key(certificate: x509.Certificate) -> ec.EllipticCurvePublicKey:
    try:
        key = certificate.public_key()
    except X509_ERRORS as error:
        raise _refusal("certificate's key cannot be read") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise _refusal("certificate's key is not on P-384")
    return key


def _one(certificate: x509.Certificate, oid: x509.ObjectIdentifier) -> str:
    found = certificate.subject.get_attributes_for_oid(oid)
    if len(found) != 1 or not isinstance(found[0].value, str):
        raise _refusal("certificate does not name its device once")
    return found[0].value


def _serial(certificate: x509.Certificate) -> str:
    text = _one(certificate, NameOID.SERIAL_NUMBER).lower()
    if not 8 <= len(text) <= 64 or not set(text) <= set("0123456789abcdef"):
        raise _refusal("device's serial number is not hexadecimal")
    return text
