"""A software NVIDIA: keys and certificates of simulated devices, from one seed.

Same names as the vendor's but for the word SIMULATED before each, same curve, same lengths. Under
NVIDIA's root these chains fail.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID, ObjectIdentifier

from sealtrain.errors import DataInvalid
from sealtrain_rehearsal.simulator.seeds import key_of, octets

_NOT_BEFORE = datetime(2020, 1, 1, tzinfo=UTC)
_NOT_AFTER = datetime(2049, 12, 31, tzinfo=UTC)
_COMPOSITE_DEVICE_ID = ObjectIdentifier("2.23.133.5.4.1")
_SHA384 = bytes.fromhex("0609608648016503040202")  # object identifier, DER


@dataclass(frozen=True, slots=True)
class Signed:
    """A certificate with its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def der(self) -> bytes:
        """The certificate."""
        return self.certificate.public_bytes(Encoding.DER)


@dataclass(frozen=True, slots=True)
class SimulatedDevice:
    """A device's key, its chain (leaf first) and what its reports repeat of them."""

    chain: tuple[Signed, ...]
    fwid: bytes
    pdi: bytes

    @property
    def key(self) -> ec.EllipticCurvePrivateKey:
        """Signs reports."""
        return self.chain[0].key

    @property
    def pem(self) -> bytes:
        """The chain as the driver gives it."""
        return b"".join(signed.certificate.public_bytes(Encoding.PEM) for signed in self.chain)


class GpuPki:
    """One simulated vendor.

    Args:
        seed: At least 16 bytes; every key and certificate is a function of it.
    """

    def __init__(self, seed: bytes) -> None:
        if len(seed) < 16:
            raise DataInvalid("simulated GPUs need a seed of at least 16 bytes")
        self._seed = bytes(seed)

    @cached_property
    def root(self) -> Signed:
        """The root of devices."""
        return self._authority("NVIDIA Device Identity CA", None)

    @cached_property
    def rim_signer(self) -> tuple[Signed, ...]:
        """Chain that signs reference values, signer first, root last."""
        root = self._authority("NVIDIA CoRIM signing Root CA", None)
        middle = self._authority("NVIDIA CoRIM signing Intermediate CA", root)
        signer = self._issue("NVIDIA CoRIM signer", self.octets("rim", 8).hex(), middle)
        return (signer, middle, root)

    def device(self, chip: str, number: int) -> SimulatedDevice:
        """Device ``number`` of a chip as its certificates spell it (``GH100``, ``LS_10``)."""
        processor = "FSP" if chip.startswith("LS") else "GSP"
        family, provisioner = self._vendor(chip)
        label = f"{chip}-{number}"
        pdi, fwid = self.octets(f"{label}-pdi", 8), self.octets(f"{label}-fwid", 48)
        kind = "50" if chip.startswith("LS") else "41"
        boot = self._authority(f"{chip} A01 {processor} BROM", provisioner, f"{kind}{pdi.hex()}")
        # 20 bytes as a certificate's serial number: positive, without a leading zero.
        serial = f"4{self.octets(f'{label}-id', 20).hex()[1:]}"
        leaf = self._issue(f"{chip} A01 {processor} FMC LF", serial, boot, fwid=fwid)
        return SimulatedDevice((leaf, boot, provisioner, family, self.root), fwid, pdi)

    def octets(self, label: str, length: int) -> bytes:
        """Bytes that the seed determines."""
        return octets(self._seed, "gpu", label, length)

    def _vendor(self, chip: str) -> tuple[Signed, Signed]:
        family = self._authority(f"NVIDIA {chip} Identity", self.root)
        return family, self._authority(f"NVIDIA {chip} Provisioner ICA 1", family)

    def _key(self, label: str) -> ec.EllipticCurvePrivateKey:
        return key_of(self.octets(f"key {label}", 64), ec.SECP384R1())

    def _authority(self, name: str, issuer: Signed | None, serial: str = "") -> Signed:
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        return self._certify(name, serial, issuer, ((constraints, True), (_usage(True), True)))

    def _issue(
        self, name: str, serial: str, issuer: Signed, *, fwid: bytes | None = None
    ) -> Signed:
        extensions: list[tuple[x509.ExtensionType, bool]] = [(_usage(False), True)]
        if fwid is None:
            extensions.append((x509.BasicConstraints(ca=False, path_length=None), True))
        else:
            firmware = _tlv(0x30, _SHA384 + _tlv(0x04, fwid))
            extensions.append(
                (x509.UnrecognizedExtension(_COMPOSITE_DEVICE_ID, _tlv(0x30, firmware)), False)
            )
        return self._certify(name, serial, issuer, tuple(extensions))

    def _certify(
        self,
        name: str,
        serial: str,
        issuer: Signed | None,
        extensions: tuple[tuple[x509.ExtensionType, bool], ...],
    ) -> Signed:
        key = self._key(f"{name} {serial}")
        attributes = [x509.NameAttribute(NameOID.COMMON_NAME, f"SIMULATED {name}")]
        if serial:
            attributes.append(x509.NameAttribute(NameOID.SERIAL_NUMBER, serial.upper()))
        subject = x509.Name(attributes)
        number = serial or hashlib.sha256(name.encode("ascii")).hexdigest()[:16]
        builder = x509.CertificateBuilder(
            subject if issuer is None else issuer.certificate.subject,
            subject,
            key.public_key(),
            int(number, 16) or 1,
            _NOT_BEFORE,
            _NOT_AFTER,
        )
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical=critical)
        signer = key if issuer is None else issuer.key
        return Signed(builder.sign(signer, hashes.SHA384(), ecdsa_deterministic=True), key)


def _usage(authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def _tlv(tag: int, value: bytes) -> bytes:
    return bytes([tag, len(value)]) + value
