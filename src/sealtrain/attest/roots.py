"""Roots of trust and certificate chains: one spelling each, and the word that marks a simulator."""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.utils import CryptographyDeprecationWarning
from cryptography.x509.oid import ExtensionOID, NameOID, PublicKeyAlgorithmOID

from sealtrain.attest.errors import (
    CertificateChainInvalid,
    QuoteInvalid,
    QuoteRootUntrusted,
    SimulatedEvidence,
)
from sealtrain.base.digests import sha256_hex
from sealtrain.base.encoding import from_base64
from sealtrain.base.models import Base64, StrictModel
from sealtrain.errors import DataInvalid, EvidenceRefused

INTEL_ROOT_SHA256 = "44a0196b2b99f889b8e149e95b807a350e7424964399e885a7cbb8ccfab674d3"
"""SHA-256 of the Intel SGX Root CA certificate (DER). The library holds the certificate itself;
this names a foreign root before any signature is looked at."""
GOOGLE_EKAK_ROOT_SHA256 = "594759594b9b61524f6c8ef668f7177f7b9066bc0674f2f49fe9e052be78beb2"
"""SHA-256 of Google's root of vTPM keys (DER), CN=EK/AK CA Root, 2022 to 2122. dstack and vaportpm
publish the same file."""

_PEM = re.compile(
    rb"-----BEGIN CERTIFICATE-----\n([A-Za-z0-9+/=\n]+)\n-----END CERTIFICATE-----(?:\n|\Z)"
)
_MAX_CERTIFICATES = 4
_WARNINGS = threading.Lock()

X509_ERRORS = (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion)
"""What the certificate library raises on bytes that are no certificate it can read."""

CHAIN_ERRORS = (
    *X509_ERRORS,
    x509.DuplicateExtension,
    x509.ExtensionNotFound,
    x509.UnsupportedGeneralNameType,
    UserWarning,  # what the library frowns upon, where a program turns warnings into errors
)
"""The same, of certificates whose extensions are read and whose links are verified."""
_LOOKED_AT = {ExtensionOID.BASIC_CONSTRAINTS, ExtensionOID.KEY_USAGE}

SIMULATED_LABEL = "SIMULATED — NOT ATTESTED"
"""What every artefact made under a simulator says."""


class SimulatorRoot(StrictModel):
    """Trust in a software root. Never part of a production policy."""

    insecure_simulator_root: Base64
    """DER certificate whose common name begins with SIMULATED."""

    def require_simulated(self) -> None:
        """Hold the root to its name: an altered copy of a root is none.

        Raises:
            ValueError: Not a certificate, or one that does not call itself SIMULATED or does not
                sign itself.
        """
        try:
            simulated = is_simulated_certificate(self.der)
        except (DataInvalid, EvidenceRefused):
            raise ValueError("insecure_simulator_root is not a DER certificate") from None
        if not simulated:
            raise ValueError(
                "insecure_simulator_root names a root that does not call itself SIMULATED"
            )
        if not _signs_itself(self.der):
            raise ValueError("insecure_simulator_root names a root that does not sign itself")

    @property
    def der(self) -> bytes:
        """The certificate."""
        return _decode(self.insecure_simulator_root)


@lru_cache(maxsize=16)
def _decode(text: str) -> bytes:
    return from_base64(text)


@lru_cache(maxsize=16)
def _signs_itself(der: bytes) -> bool:
    try:
        certificate = load_certificate(der)
        certificate.verify_directly_issued_by(certificate)
    except (InvalidSignature, *X509_ERRORS):
        return False
    return True


def load_certificate(der: bytes) -> x509.Certificate:
    """Parse a certificate of which nothing has a second encoding.

    The library lets a signature end within a byte where the bits left over are zero: such a
    certificate is another file with the same signature. It also reads extensions of a certificate
    that says no version, and takes a key for RSASSA-PSS alone (RFC 4055 §1.2) for any RSA key.

    Raises:
        ValueError: As the library, and for each of these; further ``X509_ERRORS`` besides.
    """
    certificate = x509.load_der_x509_certificate(der)
    if der[-len(certificate.signature) - 1] != 0:
        raise ValueError("the signature is not of whole bytes")
    if certificate.version is not x509.Version.v3:
        raise ValueError("the certificate is not of version 3")
    if certificate.public_key_algorithm_oid == PublicKeyAlgorithmOID.RSASSA_PSS:
        raise ValueError("the key is for one kind of signature")
    return certificate


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainLink:
    """A certificate of a chain, read once; its signature is verified elsewhere.

    Attributes:
        certificate: The library's own form.
        key: Its public key.
        chain: Whose chain it is of, for messages.
        name: Its subject, shortened.
        start: First second at which it is valid, since 1970.
        end: Last such second.
        is_issuer: Whether it says that it is an authority.
        path_length: How many authorities may stand below it; ``None`` for any number.
        signs_certificates: Whether its key may sign certificates.
        signs_statements: Whether its key may sign anything else.
    """

    certificate: x509.Certificate
    key: object
    chain: str
    name: str
    start: int
    end: int
    is_issuer: bool
    path_length: int | None
    signs_certificates: bool
    signs_statements: bool

    def refuse_misplaced(self, got: str, expected: str) -> CertificateChainInvalid:
        """The error of a certificate at a place where another one belongs."""
        return CertificateChainInvalid(
            f"certificate {self.name!r} does not fit its place in the chain of the {self.chain}",
            check="certificate chain",
            got=got,
            expected=expected,
        )

    def check_authority(self, *, below: int) -> None:
        """It may sign certificates, and so many authorities may stand between it and the leaf.

        Raises:
            CertificateChainInvalid: It may not.
        """
        if not self.is_issuer or not self.signs_certificates:
            raise self.refuse_misplaced("no authority", "an authority that may sign certificates")
        if self.path_length is not None and self.path_length < below:
            raise self.refuse_misplaced(
                f"{below} authorities below it", f"at most {self.path_length}"
            )

    def check_end_entity(self) -> None:
        """It may sign statements, and is no authority.

        Raises:
            CertificateChainInvalid: It is one, or may not sign.
        """
        if self.is_issuer or not self.signs_statements:
            raise self.refuse_misplaced(
                "an authority, or may not sign", "no authority, and may sign"
            )


def load_link(der: bytes, chain: str) -> x509.Certificate:
    """Parse a certificate of a chain; nothing of it is looked at.

    Args:
        der: The certificate.
        chain: Whose chain it is of, for messages.

    Raises:
        CertificateChainInvalid: It cannot be parsed.
    """
    try:
        return load_certificate(der)
    except CHAIN_ERRORS as error:
        raise _unreadable(chain) from error


def read_link(certificate: x509.Certificate, chain: str) -> ChainLink:
    """Read a certificate that has basicConstraints, keyUsage and no other critical extension.

    AWS's and Google's chains have only such. A key of AMD's chips has neither, and NVIDIA's
    accelerators describe their firmware in critical ones: ``snp.chain`` and ``nvidia.chain`` read
    those, all of them from ``load_certificate``.

    Args:
        certificate: Of ``load_link``.
        chain: Whose chain it is of, for messages.

    Raises:
        CertificateChainInvalid: It cannot be read, or has another critical extension.
    """
    try:
        extensions = certificate.extensions
        usage = extensions.get_extension_for_class(x509.KeyUsage).value
        constraints = extensions.get_extension_for_class(x509.BasicConstraints).value
        link = ChainLink(
            certificate=certificate,
            key=certificate.public_key(),
            chain=chain,
            name=certificate.subject.rfc4514_string()[:120],
            start=int(certificate.not_valid_before_utc.timestamp()),
            end=int(certificate.not_valid_after_utc.timestamp()),
            is_issuer=constraints.ca,
            path_length=constraints.path_length,
            signs_certificates=usage.key_cert_sign,
            signs_statements=usage.digital_signature,
        )
    except CHAIN_ERRORS as error:
        raise _unreadable(chain) from error
    for extension in extensions:
        if extension.critical and extension.oid not in _LOOKED_AT:
            raise link.refuse_misplaced(f"critical {extension.oid.dotted_string}", "none unknown")
    return link


def _unreadable(chain: str) -> CertificateChainInvalid:
    return CertificateChainInvalid(
        f"a certificate in the chain of the {chain} cannot be read", check="certificate chain"
    )


def is_simulated_certificate(der: bytes) -> bool:
    """Whether a certificate calls itself SIMULATED.

    Raises:
        QuoteInvalid: Not an X.509 certificate in DER.
    """
    try:
        names = _load(der).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    except X509_ERRORS as error:
        raise QuoteInvalid("certificate cannot be parsed", check="quote structure") from error
    return any(str(name.value).startswith("SIMULATED") for name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class VendorRoot:
    """A vendor's root, and the words that refusals of another one use.

    Attributes:
        pins: SHA-256 of the certificates (DER) that are trusted, 64 hex digits.
        subject: What carries the chain: ``quote``, ``document``…
        name: What a simulated root stands in for.
        foreign: What a foreign root is compared with.
        is_simulated: Whether a root that is not trusted calls itself SIMULATED.
        what: What is simulated then.
        check: Name of the comparison.
        simulator_hint: What to do where another simulator is trusted.
        hardware_hint: What to do where hardware is asked for.
    """

    pins: Collection[str]
    subject: str
    name: str
    foreign: str
    is_simulated: Callable[[bytes], bool]
    what: str = "evidence"
    check: str = "root"
    simulator_hint: str | None
    hardware_hint: str = "run the guest on hardware; a simulator proves nothing"

    def admit(self, root: bytes, simulator_root: bytes | None) -> bool:
        """Whether a simulator is at the end of a chain; the chain itself is checked elsewhere.

        The whole certificate is compared: nothing else of a root is signed by anything above.

        Args:
            root: The chain's last certificate, DER.
            simulator_root: Trusted software root (DER), ``None`` for the vendor's.

        Raises:
            SimulatedEvidence: A simulator's root where the vendor's is trusted.
            QuoteRootUntrusted: Any other root than the trusted one.
        """
        found = sha256_hex(root)
        if simulator_root is not None:
            if root != simulator_root:
                raise QuoteRootUntrusted(
                    f"{self.subject} does not come from the simulator that this policy trusts",
                    check=self.check,
                    got=f"root {found[:16]}…",
                    expected=f"root {sha256_hex(simulator_root)[:16]}…",
                    hint=self.simulator_hint,
                )
            return True
        if found in self.pins:
            return False
        if self.is_simulated(root):
            raise SimulatedEvidence(
                f"{self.what} is simulated; this policy asks for hardware",
                check=self.check,
                got=SIMULATED_LABEL,
                expected=self.name,
                hint=self.hardware_hint,
            )
        raise QuoteRootUntrusted(
            f"{self.subject} chains to a foreign root",
            check=self.check,
            got=f"root {found[:16]}…",
            expected=self.foreign,
        )


def certificates_of_pem(text: bytes, *, limit: int = _MAX_CERTIFICATES) -> tuple[bytes, ...]:
    """DER certificates of a PEM chain that holds nothing else, at most ``limit``.

    Only the one spelling is read: base64 without stray bits, 64 characters a line, one final
    newline or none. Otherwise a chain could be altered without altering what it says.

    Raises:
        DataInvalid: Another spelling, no certificate, or more than ``limit``.
    """
    found: list[bytes] = []
    at = 0
    while at < len(text):
        match = _PEM.match(text, at)
        if match is None or len(found) == limit:
            raise DataInvalid("not a chain of PEM certificates")
        body = match[1].replace(b"\n", b"")
        lines = b"\n".join(body[start : start + 64] for start in range(0, len(body), 64))
        if lines != match[1]:
            raise DataInvalid("PEM lines are not 64 characters long")
        found.append(from_base64(body.decode("ascii")))
        at = match.end()
    if not found:
        raise DataInvalid("no certificate")
    return tuple(found)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence one warning: loading serial number 0, and reading it, may become an error one day."""
    # The filters are the process's: without the lock two threads could leave ours behind.
    with _WARNINGS, warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore",
            message="Parsed a serial number which wasn't positive",
            category=CryptographyDeprecationWarning,
        )
        yield


def _load(der: bytes) -> x509.Certificate:
    try:
        certificate = load_certificate(der)
        _ = certificate.subject  # parsed on first use
    except (ValueError, x509.InvalidVersion) as error:
        raise QuoteInvalid("certificate cannot be parsed", check="quote structure") from error
    return certificate


def root_name(simulated: bool, vendor: str) -> str:
    """A root in words."""
    return SIMULATED_LABEL if simulated else vendor
