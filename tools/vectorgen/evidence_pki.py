"""A small software TDX PKI for ``evidence.py``: every key follows from a label.

Names begin with SIMULATED, signatures are deterministic. Shares no code with sealtrain.
"""

from __future__ import annotations

import hashlib
import json
import struct
from datetime import UTC, datetime
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

Json = Any
NOW = 1_790_000_000
ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
SGX = "1.2.840.113741.1.13.1"
DETERMINISTIC = ec.ECDSA(hashes.SHA256(), deterministic_signing=True)
START, END = datetime(2024, 1, 1, tzinfo=UTC), datetime(2045, 1, 1, tzinfo=UTC)


class Pki:
    """Root, platform CA, PCK leaf, TCB signer, attestation key."""

    def __init__(self, label: str) -> None:
        def key(name: str) -> ec.EllipticCurvePrivateKey:
            wide = hashlib.shake_256(f"sealtrain evidence vectors {label} {name}".encode())
            return ec.derive_private_key(
                int.from_bytes(wide.digest(48), "big") % (ORDER - 1) + 1, ec.SECP256R1()
            )

        self.root_key, self.ca_key, self.pck_key = key("root"), key("ca"), key("pck")
        self.tcb_key, self.attestation_key = key("tcb"), key("attestation")
        names = [f"SIMULATED {label} {part}" for part in ("Root", "CA", "PCK", "TCB")]
        self.names = names
        self.root = self.certificate(names[0], self.root_key, names[0], self.root_key, True)
        self.ca = self.certificate(names[1], self.ca_key, names[0], self.root_key, True)
        self.pck = self.certificate(names[2], self.pck_key, names[1], self.ca_key, False)
        self.tcb = self.certificate(names[3], self.tcb_key, names[0], self.root_key, False)

    def certificate(
        self,
        name: str,
        key: ec.EllipticCurvePrivateKey,
        issuer: str,
        issuer_key: ec.EllipticCurvePrivateKey,
        authority: bool,
    ) -> x509.Certificate:
        """One certificate; the PCK leaf gets the platform extension."""
        public = key.public_key()
        builder = (
            x509.CertificateBuilder(x509_name(issuer), x509_name(name), public, len(name))
            .not_valid_before(START)
            .not_valid_after(END)
            .add_extension(x509.BasicConstraints(authority, None), True)
            .add_extension(
                x509.KeyUsage(
                    not authority, False, False, False, False, authority, authority, False, False
                ),
                True,
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), False
            )
        )
        if name.endswith("PCK"):
            extension = x509.UnrecognizedExtension(x509.ObjectIdentifier(SGX), platform())
            builder = builder.add_extension(extension, False)
        return builder.sign(issuer_key, hashes.SHA256(), ecdsa_deterministic=True)

    def revocations(self, name: str, key: ec.EllipticCurvePrivateKey) -> str:
        """An empty revocation list, DER in hex."""
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
        return (
            x509.CertificateRevocationListBuilder(x509_name(name), START, END)
            .add_extension(x509.CRLNumber(1), False)
            .add_extension(authority, False)
            .sign(key, hashes.SHA256(), ecdsa_deterministic=True)
            .public_bytes(serialization.Encoding.DER)
            .hex()
        )

    def collateral(self, **changes: Json) -> dict[str, str]:
        """Collateral from one day before ``NOW`` to 29 days after."""
        level = {"tcbDate": "2026-01-01T00:00:00Z", "tcbStatus": "UpToDate"}
        zeros = [{"svn": 0}] * 16
        dates = {"issueDate": text(NOW - 86400), "nextUpdate": text(NOW + 29 * 86400)}
        tcb: dict[str, Json] = {
            "id": "TDX", "version": 3, **dates, "fmspc": "00" * 6, "pceId": "0000", "tcbType": 0,
            "tcbEvaluationDataNumber": 7,
            "tdxModule": {
                "mrsigner": "00" * 48, "attributes": "00" * 8, "attributesMask": "FF" * 8
            },
            **{key: changes[key] for key in ("fmspc",) if key in changes},
            "tcbLevels": [
                {
                    "tcb": {"sgxtcbcomponents": zeros, "pcesvn": 0, "tdxtcbcomponents": zeros},
                    **level,
                    "tcbStatus": changes.get("status", "UpToDate"),
                    "advisoryIDs": changes.get("advisories", []),
                }
            ],
        }  # fmt: skip
        identity = {
            "id": "TD_QE", "version": 2, **dates, "tcbEvaluationDataNumber": 7,
            "miscselect": "00000000", "miscselectMask": "FFFFFFFF", "attributes": "00" * 16,
            "attributesMask": "00" * 16, "mrsigner": "11" * 32, "isvprodid": 2,
            "tcbLevels": [{"tcb": {"isvsvn": 3}, **level}],
        }  # fmt: skip
        tcb_text, identity_text = json.dumps(tcb), json.dumps(identity)
        return {
            "pck_crl_issuer_chain": pem(self.ca) + pem(self.root),
            "root_ca_crl": self.revocations(self.names[0], self.root_key),
            "pck_crl": self.revocations(self.names[1], self.ca_key),
            "tcb_info_issuer_chain": pem(self.tcb) + pem(self.root),
            "tcb_info": tcb_text,
            "tcb_info_signature": sign(self.tcb_key, tcb_text.encode()).hex(),
            "qe_identity_issuer_chain": pem(self.tcb) + pem(self.root),
            "qe_identity": identity_text,
            "qe_identity_signature": sign(self.tcb_key, identity_text.encode()).hex(),
        }

    def quote(self, report: bytes, registers: list[bytes], **changes: bytes) -> bytes:
        """Version 4 quote."""
        attributes = changes.get("attributes", bytes.fromhex("0000001000000000"))
        config = changes.get("config", bytes(48))
        header = struct.pack("<HHI", 4, 2, 0x81) + bytes(4)
        header += bytes.fromhex("939a7233f79c4ca9940a0db3957f0607") + bytes(20)
        body = bytes(120) + attributes + bytes(8) + b"\x4d" * 48 + config + bytes(96)
        body += b"".join(registers) + report
        point = self.attestation_key.public_key().public_bytes(
            serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint
        )[1:]
        authentication = b"\x5a" * 32
        qe = bytes(128) + b"\x11" * 32 + bytes(96) + struct.pack("<HH", 2, 3) + bytes(60)
        qe += hashlib.sha256(point + authentication).digest() + bytes(32)
        chain = (pem(self.pck) + pem(self.ca) + pem(self.root)).encode()
        inner = qe + sign(self.pck_key, qe) + struct.pack("<H", 32) + authentication
        inner += struct.pack("<HI", 5, len(chain)) + chain
        outer = sign(self.attestation_key, header + body) + point
        outer += struct.pack("<HI", 6, len(inner)) + inner
        return header + body + struct.pack("<I", len(outer)) + outer


def platform() -> bytes:
    """Intel's extension of a PCK certificate with every security version zero."""

    def der(tag: int, *parts: bytes) -> bytes:
        body = b"".join(parts)
        size = bytes([len(body)]) if len(body) < 128 else b"\x82" + struct.pack(">H", len(body))
        return bytes([tag]) + size + body

    def pair(suffix: bytes, value: bytes) -> bytes:
        # 1.2.840.113741.1.13.1 and one or two arcs below 128 behind it
        return der(0x30, der(6, bytes.fromhex("2a864886f84d010d01") + suffix), value)

    levels = [pair(bytes([2, i]), der(2, b"\0")) for i in range(1, 18)]
    levels.append(pair(bytes([2, 18]), der(4, bytes(16))))
    return der(
        0x30,
        pair(b"\1", der(4, b"\x77" * 16)),
        pair(b"\2", der(0x30, *levels)),
        pair(b"\3", der(4, bytes(2))),
        pair(b"\4", der(4, bytes(6))),
        pair(b"\5", der(10, b"\0")),
    )


def x509_name(text_: str) -> x509.Name:
    """A name of one common name."""
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text_)])


def pem(certificate: x509.Certificate) -> str:
    """PEM text."""
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def sign(key: ec.EllipticCurvePrivateKey, message: bytes) -> bytes:
    """Raw ``r || s``."""
    r, s = decode_dss_signature(key.sign(message, DETERMINISTIC))
    return r.to_bytes(32, "big") + s.to_bytes(32, "big")


def text(seconds: int) -> str:
    """RFC 3339."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
