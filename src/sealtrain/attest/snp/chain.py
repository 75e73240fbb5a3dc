"""AMD's chain: ARK (pinned) → ASK or ASVK → VCEK or VLEK, and the fields of the last one.

Hardware's authorities are RSA-4096 with PSS and nothing else. Under a simulator's root they may be
of any kind, and every name begins with SIMULATED.

Links are remembered by the exact bytes of both certificates: checking RSA again for each report
would cost more than the report. Dates are looked at anew each time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import get_args

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat import asn1
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.x509.oid import ExtensionOID, NameOID

from sealtrain.attest import roots
from sealtrain.attest.errors import CertificateChainInvalid
from sealtrain.attest.roots import X509_ERRORS, VendorRoot, quiet
from sealtrain.attest.snp.parse import Product, SigningKey, Tcb
from sealtrain.base.digests import sha256_hex

AMD_ROOT_SHA256: dict[str, Product] = {
    "69d063b45344d26a2e94e1f4210de49ef555308287d4c174445c95639a540bcd": "Milan",
    "4c6598d19c18719c5dfd4a7d335f674e5bfe1d8f800cea2cf270c10d103db2f1": "Genoa",
    "1f084161a44bb6d93778a904877d4819cafa5d05ef4193b2ded9dd9c73dd3f6a": "Turin",
}
"""SHA-256 of the DER of AMD's root certificates (ARK)."""

_MAX_CERTIFICATE_BYTES = 4096
_AMD = "1.3.6.1.4.1.3704.1"
_LEVELS = {"bootloader": 1, "tee": 2, "snp": 3, "microcode": 8, "fmc": 9}
_KNOWN_CRITICAL = (ExtensionOID.BASIC_CONSTRAINTS, ExtensionOID.KEY_USAGE)
_SIMULATED = "SIMULATED "
_TEXT = re.compile(rb"[\x0c\x13\x16][\x01-\x7f][\x20-\x7e]{1,127}")
UNREADABLE = (
    *X509_ERRORS,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
    x509.ExtensionNotFound,
)
"""What the certificate library raises on bytes it cannot read, extensions included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endorsement:
    """What a verified chain says of the key that signs reports, and of the platform."""

    key: ec.EllipticCurvePublicKey
    simulated: bool
    product: Product
    signing_key: SigningKey
    tcb: Tcb
    hardware_id: str | None
    """Chip id in hex as reports spell it (128 digits); of a VCEK only."""
    csp_id: str | None
    """The cloud a VLEK was lent to."""
    valid_from: int
    valid_until: int
    """Intersection of the three certificates' dates, in seconds; both ends inclusive."""


def verify_chain(
    certificates: tuple[bytes, ...], *, simulator_root: bytes | None, now: int
) -> Endorsement:
    """Verify leaf, issuer and root at a moment.

    Args:
        certificates: DER: VCEK or VLEK, ASK or ASVK, ARK.
        simulator_root: The only trusted root (DER), ``None`` for AMD's.
        now: Verification time, seconds since 1970.

    Raises:
        SimulatedEvidence: A simulator's chain where hardware is asked for.
        QuoteRootUntrusted: The chain ends in another root.
        CertificateChainInvalid: Signatures, dates, roles, key types, names or extensions.
    """
    if len(certificates) != 3:
        raise CertificateChainInvalid(
            "chain has the wrong number of certificates",
            check="certificate chain",
            got=len(certificates),
            expected="leaf, issuer, root",
        )
    for der in certificates:
        if len(der) > _MAX_CERTIFICATE_BYTES:
            raise _broken("certificate is too large", len(der), _MAX_CERTIFICATE_BYTES)
    leaf, issuer, root = (bytes(der) for der in certificates)
    _AMD_ROOT.admit(root, simulator_root)
    found = _endorsement(leaf, issuer, root, simulator_root is not None)
    if not found.valid_from <= now <= found.valid_until:
        raise CertificateChainInvalid(
            "a certificate of the chain is not valid at the verification time",
            check="certificate dates",
            got=now,
            expected=f"{found.valid_from} to {found.valid_until}",
        )
    return found


def load_certificate(der: bytes) -> x509.Certificate:
    """Parse DER, without the library's warning about AMD's serial number 0.

    Raises:
        CertificateChainInvalid: Not a certificate that can be read, or bytes after it.
    """
    try:
        with quiet():
            certificate = roots.load_certificate(der)
        _ = certificate.subject, certificate.extensions  # both parse on first use
    except UNREADABLE as error:
        raise CertificateChainInvalid(
            "certificate cannot be parsed", check="certificate chain"
        ) from error
    return certificate


def common_name(certificate: x509.Certificate) -> str:
    """The one common name of the subject; empty where it has none or several."""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if len(names) == 1 else ""


def _is_simulated(root: bytes) -> bool:
    try:
        return common_name(load_certificate(root)).startswith(_SIMULATED)
    except CertificateChainInvalid:
        return False


_AMD_ROOT = VendorRoot(
    pins=AMD_ROOT_SHA256,
    subject="report",
    name="AMD root key (ARK)",
    foreign="AMD root key (ARK) of Milan, Genoa or Turin",
    is_simulated=_is_simulated,
    simulator_hint="use the root of the simulator's own state folder",
)


@lru_cache(maxsize=64)
def _endorsement(leaf: bytes, issuer: bytes, root: bytes, simulated: bool) -> Endorsement:
    """The chain's verdict without its dates; remembered by exact bytes, refusals never are."""
    authority, product, signing_key, begins, ends = check_authority(issuer, root, simulated)
    found = load_certificate(leaf)
    _check_issuer(found, authority, simulated)
    extensions = _extensions(found)
    constraints = extensions.get(ExtensionOID.BASIC_CONSTRAINTS.dotted_string)
    if isinstance(constraints, x509.BasicConstraints) and constraints.ca:
        raise _broken("leaf is an authority itself", "CA", "no CA")
    usage = extensions.get(ExtensionOID.KEY_USAGE.dotted_string)
    if isinstance(usage, x509.KeyUsage) and not usage.digital_signature:
        raise _broken("leaf may not sign", "no digital signature", "digital signature")
    key = _public_key(found)
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != "secp384r1":
        raise _broken("leaf has another kind of key", type(key).__name__, "P-384")
    name = f"SEV-{signing_key.upper()}"
    _check_name(found, name, simulated)
    said = _text(extensions, f"{_AMD}.2")
    if said.split("-")[0] != product:
        raise _broken("leaf is of another product than its issuer", said, product)
    levels = {
        part: _level(extensions, f"{_AMD}.3.{number}")
        for part, number in _LEVELS.items()
        if part != "fmc" or product == "Turin"
    }
    hardware_id = _hardware_id(extensions.get(f"{_AMD}.4"))
    if (hardware_id is not None) != (signing_key == "vcek"):
        raise _broken("leaf's chip id does not fit its kind", name, "a chip id in a VCEK only")
    return Endorsement(
        key=key,
        simulated=simulated,
        product=product,
        signing_key=signing_key,
        tcb=Tcb(**levels),
        hardware_id=hardware_id,
        csp_id=None if signing_key == "vcek" else _text(extensions, f"{_AMD}.5"),
        valid_from=max(begins, int(found.not_valid_before_utc.timestamp())),
        valid_until=min(ends, int(found.not_valid_after_utc.timestamp())),
    )


@lru_cache(maxsize=16)
def check_authority(
    issuer: bytes, root: bytes, simulated: bool
) -> tuple[x509.Certificate, Product, SigningKey, int, int]:
    """An intermediate authority of AMD's, which signs the keys of chips or of cloud providers.

    Args:
        issuer: ASK or ASVK, DER.
        root: ARK, DER; trusted already.
        simulated: The root is a simulator's.

    Returns:
        The authority's certificate, its product and kind of signing key, and the first and the last
        second at which both certificates are valid.

    Raises:
        CertificateChainInvalid: It is not issued by the root, may not sign certificates, or is not
            of the root's product.
    """
    above, found = load_certificate(root), load_certificate(issuer)
    _check_issuer(above, above, simulated)
    _check_issuer(found, above, simulated)
    for certificate in (above, found):
        extensions = _extensions(certificate)
        constraints = extensions.get(ExtensionOID.BASIC_CONSTRAINTS.dotted_string)
        usage = extensions.get(ExtensionOID.KEY_USAGE.dotted_string)
        if not isinstance(constraints, x509.BasicConstraints) or not constraints.ca:
            raise _broken("issuer is no authority", "no CA", "CA")
        if not isinstance(usage, x509.KeyUsage) or not usage.key_cert_sign:
            raise _broken("issuer may not sign certificates", "no certSign", "certSign")
    products: tuple[Product, ...] = get_args(Product)
    if not simulated:
        products = (AMD_ROOT_SHA256[sha256_hex(root)],)
    name = common_name(found).removeprefix(_SIMULATED if simulated else "")
    for product in products:
        signing_key: SigningKey | None = None
        if name == f"SEV-{product}":
            signing_key = "vcek"
        elif name == f"SEV-VLEK-{product}":
            signing_key = "vlek"
        if signing_key is not None:
            _check_name(found, name, simulated)
            begins = max(int(signer.not_valid_before_utc.timestamp()) for signer in (above, found))
            ends = min(int(signer.not_valid_after_utc.timestamp()) for signer in (above, found))
            return found, product, signing_key, begins, ends
    raise _broken("issuer is not of this root's product", name[:64], " or ".join(products))


def _check_issuer(certificate: x509.Certificate, issuer: x509.Certificate, simulated: bool) -> None:
    """Check one link: names, signature, and that hardware's authorities are RSA-4096 with PSS."""
    key = _public_key(issuer)
    try:
        if not simulated:
            if not isinstance(key, rsa.RSAPublicKey) or key.key_size != 4096:
                raise _broken("authority has another kind of key", type(key).__name__, "RSA-4096")
            scheme = certificate.signature_algorithm_parameters
            digest = certificate.signature_hash_algorithm
            if not isinstance(scheme, padding.PSS) or not isinstance(digest, hashes.SHA384):
                raise _broken("signature is of another kind", type(scheme).__name__, "PSS, SHA-384")
        certificate.verify_directly_issued_by(issuer)
    except (*UNREADABLE, InvalidSignature) as error:
        raise CertificateChainInvalid(
            "a certificate of the chain was not signed by the next one", check="certificate chain"
        ) from error


def _public_key(certificate: x509.Certificate) -> object:
    try:
        return certificate.public_key()
    except UNREADABLE as error:
        raise CertificateChainInvalid(
            "a certificate's key cannot be read", check="certificate chain"
        ) from error


def _extensions(certificate: x509.Certificate) -> dict[str, x509.ExtensionType]:
    for extension in certificate.extensions:
        if extension.critical and extension.oid not in _KNOWN_CRITICAL:
            raise _broken("unknown critical extension", extension.oid.dotted_string, "none")
    return {extension.oid.dotted_string: extension.value for extension in certificate.extensions}


def _check_name(certificate: x509.Certificate, name: str, simulated: bool) -> None:
    expected = (_SIMULATED if simulated else "") + name
    if common_name(certificate) != expected:
        raise _broken("certificate has another name", common_name(certificate)[:64], expected)


def _value(extensions: dict[str, x509.ExtensionType], oid: str) -> bytes:
    found = extensions.get(oid)
    if not isinstance(found, x509.UnrecognizedExtension):
        raise _broken("an extension of AMD's is missing in the leaf", "nothing", oid)
    return found.value


def _level(extensions: dict[str, x509.ExtensionType], oid: str) -> int:
    """One security version: a DER integer of 0 to 255."""
    value = _value(extensions, oid)
    try:
        level = asn1.decode_der(int, value)
    except ValueError:
        level = -1
    if not 0 <= level <= 255:
        raise _broken("leaf has a malformed security version", value[:8].hex(), oid)
    return level


def _text(extensions: dict[str, x509.ExtensionType], oid: str) -> str:
    """A short DER string, printable ASCII."""
    value = _value(extensions, oid)
    if not _TEXT.fullmatch(value) or value[1] != len(value) - 2:
        raise _broken("leaf has a malformed text", value[:8].hex(), oid)
    return value[2:].decode("ascii")


def _hardware_id(found: x509.ExtensionType | None) -> str | None:
    """Chip id: 64 bytes (8 on Turin, where the report ends in zeros), bare or an octet string."""
    if found is None:
        return None
    value = found.value if isinstance(found, x509.UnrecognizedExtension) else b""
    if len(value) in (10, 66) and value[:2] == bytes([4, len(value) - 2]):
        value = value[2:]
    if len(value) not in (8, 64) or not any(value):
        raise _broken("leaf has a malformed chip id", f"{len(value)} bytes", "8 or 64 bytes")
    return value.ljust(64, b"\0").hex()


def _broken(message: str, got: object, expected: object) -> CertificateChainInvalid:
    return CertificateChainInvalid(message, check="certificate chain", got=got, expected=expected)
