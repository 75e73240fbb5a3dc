"""A software AMD: root, issuer, chip key and reports from one seed; each can lie in a named way.

Every certificate name begins with SIMULATED. Keys are P-384 throughout: RSA keys cannot be derived
from a seed in reasonable time, and only hardware's authorities must be RSA.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID, ObjectIdentifier

from sealtrain.attest.snp.parse import Product, SigningKey, Tcb
from sealtrain.base.canonical import JsonValue
from sealtrain.base.encoding import to_base64
from sealtrain.errors import DataInvalid
from sealtrain_rehearsal.simulator.pki import tpm_chain
from sealtrain_rehearsal.simulator.seeds import key_of, octets

SNP_FAULT_MEANINGS = {
    "debug-bit": "the guest's policy allows debugging (debug-guest)",
    "migration-agent": "another guest may move this one elsewhere (migratable-guest)",
    "old-tcb": "firmware below the floor (tcb-status-refused)",
    "committed-below-reported": "the platform can go back to older firmware (tcb-status-refused)",
    "wrong-chip": "the certificate is of another chip (collateral-mismatch)",
    "milan": "a processor whose keys can be read out (platform-mismatch)",
    "vmpl-1": "asked for at another privilege level (platform-mismatch)",
    "masked-chip-id": "the platform hides its identity (platform-mismatch)",
    "wrong-root": "another vendor of the same name (quote-root-untrusted)",
    "bad-signature": "one bit of the signature is wrong (quote-invalid)",
    "other-image": "another image was started (measurement-mismatch)",
    "revoked-issuer": "the issuer of the chip's key was revoked (certificate-revoked)",
}
"""What a simulated guest or platform can be told to get wrong, and the refusal it must end in
(under a policy that looks: measurements and chips listed, revocation required)."""

SNP_FAULTS = tuple(SNP_FAULT_MEANINGS)
"""Their names."""

SNP_MEASUREMENT = hashlib.sha384(b"SIMULATED sealtrain guest image").digest()
"""Launch digest of the simulated image."""

SNP_TCB = {"bootloader": 10, "tee": 1, "snp": 23, "microcode": 200}
"""Security versions of the simulated platform; Turin adds an fmc level of 1."""

_NOT_BEFORE = datetime(2020, 1, 1, tzinfo=UTC)
_NOT_AFTER = datetime(2049, 12, 31, tzinfo=UTC)
_AMD = "1.3.6.1.4.1.3704.1"
_ECDSA = ec.ECDSA(hashes.SHA384(), deterministic_signing=True)
SNP_MITIGATIONS = 0b11
"""Mitigation bits of the simulated platform, where its reports tell them."""

SNP_EXTENDED_TCB = hashlib.sha256(b"SIMULATED extended TCB").digest()
"""Current, launch and committed extended TCB of the simulated platform, where reports tell them."""

_PLATFORM_INFO = 1 << 2 | 1 << 5  # error correction, and the check for aliased memory
_VERSIONS: dict[Product, int] = {"Milan": 2, "Genoa": 3, "Turin": 5}
_CPUID: dict[Product, bytes] = {
    "Milan": b"\x19\x01\x01",
    "Genoa": b"\x19\x11\x01",
    "Turin": b"\x1a\x02\x01",
}
_CSP = "SIMULATED cloud"
_POLICY = 1 << 17 | 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class _Platform:
    """Everything a fault can change."""

    product: Product
    root: str = "root"
    policy: int = _POLICY
    vmpl: int = 0
    measurement: bytes = SNP_MEASUREMENT
    reported: Tcb
    committed: Tcb
    certified_chip: bytes
    shown_chip: bytes
    spoiled: bool = False


class SimulatedSnp:
    """One simulated guest on one simulated platform.

    Args:
        seed: At least 16 bytes; keys, certificates and chip id are a function of it.
        product: Processor generation.
        version: Of its reports, 2 to 6; ``None`` for one that firmware of the product makes.
        signing_key: Chip key or key lent to a cloud.
        launch: Stands for one start of the guest; another one gives another report id.
    """

    def __init__(
        self,
        seed: bytes,
        *,
        product: Product = "Genoa",
        version: int | None = None,
        signing_key: SigningKey = "vcek",
        launch: bytes = b"",
    ) -> None:
        if len(seed) < 16:
            raise DataInvalid("simulated PKI needs a seed of 16 bytes")
        self._seed = bytes(seed)
        self._signing_key = signing_key
        self._version = version
        chip = self._bytes("chip", 8).ljust(64, b"\0") if product == "Turin" else None
        chip = self._bytes("chip", 64) if chip is None else chip
        tcb = _tcb(product)
        self._sound = _Platform(
            product=product, reported=tcb, committed=tcb, certified_chip=chip, shown_chip=chip
        )
        self._report_id = hashlib.sha256(self._bytes("report-id", 32) + launch).digest()
        self.root_der = self._authority(self._sound)[2].public_bytes(Encoding.DER)

    @property
    def chip_id(self) -> str:
        """The chip as a policy lists it."""
        return self._sound.shown_chip.hex()

    def report(
        self,
        report_data: bytes,
        app_compose: bytes,
        *,
        host_data: bytes | None = None,
        fault: str | None = None,
    ) -> bytes:
        """A report of 1184 bytes over 64, for a guest started with a deployment document.

        Args:
            report_data: 64 bytes.
            app_compose: The document.
            host_data: What the host set instead of the document's hash, 32 bytes.
            fault: One of ``SNP_FAULTS``.

        Raises:
            DataInvalid: Not 64 bytes, or an unknown fault.
        """
        if len(report_data) != 64:
            raise DataInvalid("report_data is not 64 bytes long")
        platform = self._platform(fault)
        product = platform.product
        body = bytearray(0x2A0)
        version = _VERSIONS[product] if self._version is None else self._version
        struct.pack_into("<IIQ", body, 0, version, 0, platform.policy)
        struct.pack_into("<II", body, 0x30, platform.vmpl, 1)
        key_info = (self._signing_key == "vlek") << 2
        struct.pack_into("<QI", body, 0x40, _PLATFORM_INFO, key_info)
        for at, value in (
            (0x38, _field(platform.committed, product)),
            (0x50, report_data),
            (0x90, platform.measurement),
            (0xC0, hashlib.sha256(app_compose).digest() if host_data is None else host_data),
            (0x140, self._report_id),
            (0x160, b"\xff" * 32),
            (0x180, _field(platform.reported, product)),
            (0x188, _CPUID[product] if version >= 3 else bytes(3)),
            (0x1A0, platform.shown_chip),
            (0x1E0, _field(platform.committed, product)),
            (0x1E8, bytes([1, 55, 1, 0, 1, 55, 1, 0])),
            (0x1F0, _field(platform.reported, product)),
            (0x1F8, struct.pack("<QQ", SNP_MITIGATIONS, SNP_MITIGATIONS) if version >= 5 else b""),
            (0x220, SNP_EXTENDED_TCB * 3 if version >= 6 else b""),
        ):
            body[at : at + len(value)] = value
        key = self.key(f"{platform.root}:{self._signing_key}:{product}")
        r, s = decode_dss_signature(key.sign(bytes(body), _ECDSA))
        signature = r.to_bytes(72, "little") + s.to_bytes(72, "little")
        if platform.spoiled:
            signature = bytes([signature[0] ^ 1]) + signature[1:]
        return bytes(body) + signature + bytes(368)

    def certificates(self, *, fault: str | None = None) -> tuple[bytes, bytes, bytes]:
        """DER: leaf, issuer, root. Raises as ``report``."""
        platform = self._platform(fault)
        product, signing_key = platform.product, self._signing_key
        issuer_key, issuer, root = self._authority(platform)
        levels = {"bootloader": 1, "tee": 2, "snp": 3, "microcode": 8, "fmc": 9}
        values = {f"{_AMD}.2": _text(product)}
        for name, level in platform.reported.parts().items():
            values[f"{_AMD}.3.{levels[name]}"] = _integer(level)
        if signing_key == "vcek":
            chip = platform.certified_chip
            values[f"{_AMD}.4"] = chip[:8] if product == "Turin" else chip
        else:
            values[f"{_AMD}.5"] = _text(_CSP)
        leaf = _certificate(
            f"SEV-{signing_key.upper()}",
            self.key(f"{platform.root}:{signing_key}:{product}"),
            issuer.subject,
            issuer_key,
            values=values,
        )
        found = (leaf, issuer, root)
        first, second, third = (certificate.public_bytes(Encoding.DER) for certificate in found)
        return first, second, third

    def show(
        self,
        report_data: bytes,
        app_compose: bytes,
        *,
        now: int,
        host_data: bytes | None = None,
        fault: str | None = None,
    ) -> dict[str, JsonValue]:
        """Both with a revocation list made at ``now``, as an evidence document carries them.

        Raises as ``report``.
        """
        crl = self.revocations(now, issuer_revoked=fault == "revoked-issuer")
        return {
            "tee": "snp",
            "report": to_base64(
                self.report(report_data, app_compose, host_data=host_data, fault=fault)
            ),
            "certificates": [to_base64(der) for der in self.certificates(fault=fault)],
            "crl": to_base64(crl),
        }

    def tpm_key(
        self, oid: str, machine: bytes
    ) -> tuple[ec.EllipticCurvePrivateKey, tuple[bytes, ...]]:
        """The attestation key of a vTPM under this vendor's root; as ``SimulatedPki.tpm_key``."""
        issuer, key = (
            key_of(self._bytes(f"key:{label}", 48), ec.SECP256R1())
            for label in ("tpm-ca", "tpm-ak")
        )
        made, found = tpm_chain("SIMULATED ARK", self.key("root"), issuer, key, (oid, machine))
        return made, (*found, self.root_der)

    def revocations(self, now: int, *, issuer_revoked: bool = False) -> bytes:
        """The root's revocation list (DER), valid for 30 days."""
        _, issuer, root = self._authority(self._sound)
        made = datetime.fromtimestamp(now - 300, UTC)
        until = datetime.fromtimestamp(now + 30 * 86400, UTC)
        builder = x509.CertificateRevocationListBuilder(root.subject, made, until)
        if issuer_revoked:
            builder = builder.add_revoked_certificate(
                x509.RevokedCertificateBuilder(issuer.serial_number, made).build()
            )
        signed = builder.sign(self.key("root"), hashes.SHA384(), ecdsa_deterministic=True)
        return signed.public_bytes(Encoding.DER)

    def _platform(self, fault: str | None) -> _Platform:
        sound = self._sound
        match fault:
            case None | "revoked-issuer":
                return sound
            case "debug-bit":
                return replace(sound, policy=sound.policy | 1 << 19)
            case "migration-agent":
                return replace(sound, policy=sound.policy | 1 << 18)
            case "old-tcb":
                old = replace(sound.reported, microcode=sound.reported.microcode - 1)
                return replace(sound, reported=old, committed=old)
            case "committed-below-reported":
                old = replace(sound.reported, snp=sound.reported.snp - 1)
                return replace(sound, committed=old)
            case "wrong-chip":
                other = bytes(byte ^ 0xFF for byte in sound.certified_chip[:8])
                return replace(sound, certified_chip=other + sound.certified_chip[8:])
            case "milan":
                tcb = _tcb("Milan")
                return replace(sound, product="Milan", reported=tcb, committed=tcb)
            case "vmpl-1":
                return replace(sound, vmpl=1)
            case "masked-chip-id":
                return replace(sound, shown_chip=bytes(64))
            case "wrong-root":
                return replace(sound, root="another root")
            case "bad-signature":
                return replace(sound, spoiled=True)
            case "other-image":
                other = hashlib.sha384(b"SIMULATED another image").digest()
                return replace(sound, measurement=other)
        raise DataInvalid(
            "unknown fault of a simulated SEV-SNP guest", got=fault, expected=", ".join(SNP_FAULTS)
        )

    def _authority(
        self, platform: _Platform
    ) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate, x509.Certificate]:
        """Issuer's key, issuer, root."""
        root_key = self.key(platform.root)
        root = _certificate("ARK", root_key, None, root_key, authority=True)
        middle = "VLEK-" if self._signing_key == "vlek" else ""
        name = f"SEV-{middle}{platform.product}"
        key = self.key(f"{platform.root}:{name}")
        return key, _certificate(name, key, root.subject, root_key, authority=True), root

    def _bytes(self, label: str, length: int) -> bytes:
        return octets(self._seed, "snp", label, length)

    def key(self, label: str) -> ec.EllipticCurvePrivateKey:
        """Private key of one part of the simulated vendor or chip, such as ``"root"``."""
        return key_of(self._bytes(f"key:{label}", 72), ec.SECP384R1())


def _tcb(product: Product) -> Tcb:
    return Tcb(**SNP_TCB, fmc=1 if product == "Turin" else None)


def _field(tcb: Tcb, product: Product) -> bytes:
    if product == "Turin":
        return bytes([tcb.fmc or 0, tcb.bootloader, tcb.tee, tcb.snp, 0, 0, 0, tcb.microcode])
    return bytes([tcb.bootloader, tcb.tee, 0, 0, 0, 0, tcb.snp, tcb.microcode])


def _text(value: str) -> bytes:
    """A DER string of ASCII."""
    return bytes([0x16, len(value)]) + value.encode("ascii")


def _integer(value: int) -> bytes:
    """A DER integer of 0 to 255."""
    return bytes([2, 1, value]) if value < 0x80 else bytes([2, 2, 0, value])


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Name | None,
    issuer_key: ec.EllipticCurvePrivateKey,
    *,
    authority: bool = False,
    values: dict[str, bytes] | None = None,
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"SIMULATED {name}")])
    serial = int.from_bytes(hashlib.sha256(name.encode("ascii")).digest()[:8], "big") >> 1 | 1
    builder = x509.CertificateBuilder(
        subject if issuer is None else issuer, subject, key.public_key(), serial
    )
    builder = builder.not_valid_before(_NOT_BEFORE).not_valid_after(_NOT_AFTER)
    if authority:
        usage = x509.KeyUsage(
            digital_signature=False,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        constraints = x509.BasicConstraints(ca=True, path_length=None if issuer is None else 0)
        builder = builder.add_extension(constraints, critical=True)
        builder = builder.add_extension(usage, critical=True)
    for oid, value in (values or {}).items():
        extension = x509.UnrecognizedExtension(ObjectIdentifier(oid), value)
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(issuer_key, hashes.SHA384(), ecdsa_deterministic=True)
