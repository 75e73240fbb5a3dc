"""A software TDX PKI: every certificate, revocation list, collateral and quote from one seed.

Deterministic: the same seed gives the same root on every machine and after every restart. All
certificate names begin with SIMULATED. The quotes have the structure of hardware quotes and pass
the same verification code under this root; under Intel's root they fail.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID, ObjectIdentifier

from sealtrain.attest.evidence import Collateral
from sealtrain.base.clock import to_rfc3339
from sealtrain.errors import DataInvalid
from sealtrain_rehearsal.simulator.faults import check_fault
from sealtrain_rehearsal.simulator.seeds import key_of, octets

COLLATERAL_LIFETIME = 30 * 24 * 3600
CLOCK_SKEW = 300
TD_ATTRIBUTES = bytes.fromhex("0000001000000000")
"""SEPT_VE_DISABLE set, debug clear: what a production guest has."""

_ISSUED_LATER = {"stale-collateral": -60 * 24 * 3600, "future-collateral": 24 * 3600}
_STATUS = {"out-of-date-tcb": "OutOfDate", "revoked-tcb": "Revoked"}
_ATTRIBUTES = {
    "debug-bit": bytes.fromhex("0100001000000000"),
    "no-sept-ve-disable": bytes(8),
}

_NOT_BEFORE = datetime(2020, 1, 1, tzinfo=UTC)
_NOT_AFTER = datetime(2049, 12, 31, tzinfo=UTC)
_SGX = "1.2.840.113741.1.13.1"
_QE_VENDOR = bytes.fromhex("939a7233f79c4ca9940a0db3957f0607")
_QE_SIGNER = b"\x44" * 32
_ECDSA = ec.ECDSA(hashes.SHA256(), deterministic_signing=True)


class SimulatedPki:
    """One simulated vendor with one simulated platform.

    Args:
        seed: At least 16 bytes; the whole PKI is a function of it.
        fmspc: Platform family the PCK certificate names, 6 bytes.
        ppid: Platform id the PCK certificate names, 16 bytes.
        fault: One of ``FAULTS``, or ``None`` to tell the truth; lies of a guest are ignored here.

    Raises:
        DataInvalid: An argument has the wrong length, or there is no such fault.
    """

    def __init__(
        self,
        seed: bytes,
        *,
        fmspc: bytes = bytes(6),
        ppid: bytes | None = None,
        fault: str | None = None,
    ) -> None:
        if len(seed) < 16 or len(fmspc) != 6 or len(ppid or bytes(16)) != 16:
            raise DataInvalid("simulated PKI needs a seed of 16, an FMSPC of 6, a PPID of 16 bytes")
        check_fault(fault)
        self._given = (bytes(seed), fmspc, ppid)
        self._fault = fault
        self._seed = bytes(seed)
        if fault == "foreign-root":
            self._seed = self._octets("foreign-root", 32)
        self._fmspc = fmspc
        self._root_key, self._ca_key = self._key("root"), self._key("pck-ca")
        self._pck_key, self._tcb_key = self._key("pck"), self._key("tcb")
        root, ca = "SIMULATED SGX Root CA", "SIMULATED SGX PCK Platform CA"
        self._root = _certificate(
            root, self._root_key.public_key(), root, self._root_key, authority=True
        )
        self._ca = _certificate(ca, self._ca_key.public_key(), root, self._root_key, authority=True)
        self._pck = _certificate(
            "SIMULATED SGX PCK Certificate",
            self._pck_key.public_key(),
            ca,
            self._ca_key,
            extension=(
                _SGX,
                _platform_extension(self._octets("ppid", 16) if ppid is None else ppid, fmspc),
            ),
        )
        self._tcb = _certificate(
            "SIMULATED SGX TCB Signing", self._tcb_key.public_key(), root, self._root_key
        )
        self.root_der = self._root.public_bytes(Encoding.DER)
        self._chain = (_pem(self._pck) + _pem(self._ca) + _pem(self._root)).encode("ascii")

    def lying(self, fault: str | None) -> SimulatedPki:
        """The same vendor and platform with a fault. Raises as the constructor."""
        seed, fmspc, ppid = self._given
        return SimulatedPki(seed, fmspc=fmspc, ppid=ppid, fault=fault)

    def collateral(
        self,
        now: int,
        *,
        lifetime: int = COLLATERAL_LIFETIME,
        tcb_status: str = "UpToDate",
        advisories: tuple[str, ...] = (),
        tcb_evaluation_data_number: int = 1,
        crl_until: int | None = None,
        revoked: bool = False,
        needed: Mapping[str, int] | None = None,
    ) -> Collateral:
        """Collateral issued at ``now`` (less five minutes of clock skew), or as the fault says.

        Args:
            now: Seconds since 1970.
            lifetime: Seconds until TCB info and QE identity expire.
            tcb_status: Intel's word for the one TCB level that everything matches.
            advisories: Advisory ids of that level.
            tcb_evaluation_data_number: Age mark of the collateral.
            crl_until: When both revocation lists end, seconds since 1970; 2049 otherwise.
            revoked: Put this platform's certificate on its list.
            needed: Components, by Intel's words for them, and the security versions of a level
                above, which is up to date. The platform has 0 of each.
        """
        now += _ISSUED_LATER.get(self._fault or "", 0)
        tcb_status = _STATUS.get(self._fault or "", tcb_status)
        if self._fault == "low-evaluation-number":
            tcb_evaluation_data_number = 0
        issued, until = to_rfc3339(now - CLOCK_SKEW), to_rfc3339(now + lifetime)
        components = [{"svn": 0}] * 16
        level = {"sgxtcbcomponents": components, "pcesvn": 0, "tdxtcbcomponents": components}
        above = _level(needed or {}, components)
        tcb_info = _json(
            {
                "id": "TDX",
                "version": 3,
                "issueDate": issued,
                "nextUpdate": until,
                "fmspc": self._fmspc.hex(),
                "pceId": "0000",
                "tcbType": 0,
                "tcbEvaluationDataNumber": tcb_evaluation_data_number,
                "tdxModule": {
                    "mrsigner": "00" * 48,
                    "attributes": "00" * 8,
                    "attributesMask": "FF" * 8,
                },
                "tcbLevels": [
                    *(
                        []
                        if needed is None
                        else [{"tcb": above, "tcbDate": issued, "tcbStatus": "UpToDate"}]
                    ),
                    {
                        "tcb": level,
                        "tcbDate": issued,
                        "tcbStatus": tcb_status,
                        "advisoryIDs": list(advisories),
                    },
                ],
            }
        )
        qe_identity = _json(
            {
                "id": "TD_QE",
                "version": 2,
                "issueDate": issued,
                "nextUpdate": until,
                "tcbEvaluationDataNumber": tcb_evaluation_data_number,
                "miscselect": "00000000",
                "miscselectMask": "FFFFFFFF",
                "attributes": "00" * 16,
                "attributesMask": "00" * 16,
                "mrsigner": _QE_SIGNER.hex(),
                "isvprodid": 1,
                "tcbLevels": [{"tcb": {"isvsvn": 1}, "tcbDate": issued, "tcbStatus": "UpToDate"}],
            }
        )
        end = _NOT_AFTER if crl_until is None else datetime.fromtimestamp(crl_until, UTC)
        root, ca, tcb = _pem(self._root), _pem(self._ca), _pem(self._tcb)
        return Collateral(
            pck_crl_issuer_chain=ca + root,
            root_ca_crl=_revocations("SIMULATED SGX Root CA", self._root_key, end).hex(),
            pck_crl=_revocations(
                "SIMULATED SGX PCK Platform CA", self._ca_key, end, *([self._pck] * revoked)
            ).hex(),
            tcb_info_issuer_chain=tcb + root,
            tcb_info=tcb_info,
            tcb_info_signature=_raw_sign(self._tcb_key, tcb_info.encode("ascii")).hex(),
            qe_identity_issuer_chain=tcb + root,
            qe_identity=qe_identity,
            qe_identity_signature=_raw_sign(self._tcb_key, qe_identity.encode("ascii")).hex(),
        )

    def quote(
        self,
        report_data: bytes,
        *,
        mrtd: bytes = bytes(48),
        rtmr: tuple[bytes, bytes, bytes, bytes] = (bytes(48), bytes(48), bytes(48), bytes(48)),
        mr_config_id: bytes = bytes(48),
        td_attributes: bytes = TD_ATTRIBUTES,
        service_td: bytes | None = None,
        version: Literal[4, 5] = 4,
    ) -> bytes:
        """A quote over 64 bytes, signed by this PKI's attestation key.

        Of ``version`` with a TD report 1.0; where ``service_td`` (48 bytes) is given, of version 5
        with a TD report 1.5.

        Raises:
            DataInvalid: A field has the wrong length.
        """
        td_attributes = _ATTRIBUTES.get(self._fault or "", td_attributes)
        if self._fault == "migratable":
            service_td = b"\x01" * 48
        attestation_key = self._key("attestation")
        public, qe_auth = _raw_public(attestation_key), self._octets("qe-auth", 32)
        qe_report = (
            (bytes(128) + _QE_SIGNER + bytes(96) + struct.pack("<HH", 1, 1) + bytes(60))
            + hashlib.sha256(public + qe_auth).digest()
            + bytes(32)
        )
        body = bytes(16 + 48 + 48 + 8) + td_attributes + bytes(8) + mrtd + mr_config_id
        body += bytes(48 + 48) + b"".join(rtmr) + report_data
        if len(body) != 584 or len(report_data) != 64 or len(service_td or bytes(48)) != 48:
            raise DataInvalid("a field of the simulated quote has the wrong length")
        version = version if service_td is None else 5
        header = struct.pack("<HHIHH", version, 2, 0x81, 0, 0) + _QE_VENDOR + bytes(20)
        if service_td is not None:
            body += bytes(16) + service_td
        if version == 5:
            header += struct.pack("<HI", 2 if service_td is None else 3, len(body))
        chain = struct.pack("<HI", 5, len(self._chain)) + self._chain
        certify = qe_report + _raw_sign(self._pck_key, qe_report)
        certify += struct.pack("<H", len(qe_auth)) + qe_auth + chain
        signed = _raw_sign(attestation_key, header + body)
        if self._fault == "bad-signature":
            signed = signed[:-1] + bytes([signed[-1] ^ 1])
        signature = signed + public
        signature += struct.pack("<HI", 6, len(certify)) + certify
        return header + body + struct.pack("<I", len(signature)) + signature

    def tpm_key(
        self, oid: str, machine: bytes
    ) -> tuple[ec.EllipticCurvePrivateKey, tuple[bytes, ...]]:
        """The attestation key of this platform's vTPM, and its certificates up to the root.

        Args:
            oid: The extension that names the machine.
            machine: Its value, DER.
        """
        key, found = tpm_chain(
            "SIMULATED SGX Root CA",
            self._root_key,
            self._key("tpm-ca"),
            self._key("tpm-ak"),
            (oid, machine),
        )
        return key, (*found, self._root.public_bytes(Encoding.DER))

    def certify_tpm(
        self, public: ec.EllipticCurvePublicKey, oid: str, machine: bytes
    ) -> tuple[bytes, ...]:
        """Certificates (DER), up to the root, of the attestation key of a TPM that is none of ours.

        Args:
            public: The key, which a TPM made.
            oid: The extension that names the machine.
            machine: Its value, DER.
        """
        found = certify(
            "SIMULATED SGX Root CA", self._root_key, self._key("tpm-ca"), public, (oid, machine)
        )
        return (*found, self._root.public_bytes(Encoding.DER))

    def _octets(self, label: str, length: int) -> bytes:
        return octets(self._seed, "pki", label, length)

    def _key(self, label: str) -> ec.EllipticCurvePrivateKey:
        return key_of(self._octets(label, 48), ec.SECP256R1())


def tpm_chain(
    root: str,
    root_key: ec.EllipticCurvePrivateKey,
    issuer_key: ec.EllipticCurvePrivateKey,
    key: ec.EllipticCurvePrivateKey,
    machine: tuple[str, bytes],
) -> tuple[ec.EllipticCurvePrivateKey, tuple[bytes, bytes]]:
    """A vTPM's attestation key, and the certificates (DER) between it and a root.

    Args:
        root: The root's name.
        issuer_key: Key of the authority below it.
        key: The attestation key.
        machine: The extension that names the machine, and its value.
    """
    return key, certify(root, root_key, issuer_key, key.public_key(), machine)


def certify(
    root: str,
    root_key: ec.EllipticCurvePrivateKey,
    issuer_key: ec.EllipticCurvePrivateKey,
    public: ec.EllipticCurvePublicKey,
    machine: tuple[str, bytes],
) -> tuple[bytes, bytes]:
    """Certificates (DER) of a vTPM's public key; arguments as ``tpm_chain``."""
    name = "SIMULATED EK/AK CA Intermediate"
    issuer = _certificate(name, issuer_key.public_key(), root, root_key, authority=True)
    leaf = _certificate("SIMULATED vTPM", public, name, issuer_key, extension=machine)
    return leaf.public_bytes(Encoding.DER), issuer.public_bytes(Encoding.DER)


_PLACES = {
    "Early Microcode Update": ("sgxtcbcomponents", 0),
    "SEAMLDR ACM": ("sgxtcbcomponents", 7),
    "TDX Module": ("tdxtcbcomponents", 0),
    "TDX Late Microcode Update": ("tdxtcbcomponents", 2),
}


def _level(needed: Mapping[str, int], components: list[dict[str, int]]) -> dict[str, Any]:
    """A TCB level that asks for these components."""
    found: dict[str, Any] = {
        "sgxtcbcomponents": list(components),
        "pcesvn": needed.get("PCE", 0),
        "tdxtcbcomponents": list(components),
    }
    for name, (family, place) in _PLACES.items():
        if name in needed:
            found[family][place] = {"svn": needed[name], "type": name}
    return found


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(Encoding.PEM).decode("ascii")


def _raw_sign(key: ec.EllipticCurvePrivateKey, message: bytes) -> bytes:
    r, s = decode_dss_signature(key.sign(message, _ECDSA))
    return r.to_bytes(32, "big") + s.to_bytes(32, "big")


def _raw_public(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)[1:]


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _certificate(
    name: str,
    public: ec.EllipticCurvePublicKey,
    issuer: str,
    issuer_key: ec.EllipticCurvePrivateKey,
    *,
    authority: bool = False,
    extension: tuple[str, bytes] | None = None,
) -> x509.Certificate:
    serial = int.from_bytes(hashlib.sha256(name.encode("ascii")).digest()[:8], "big") >> 1 | 1
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        x509.CertificateBuilder(_name(issuer), _name(name), public, serial)
        .not_valid_before(_NOT_BEFORE)
        .not_valid_after(_NOT_AFTER)
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),
            critical=False,
        )
    )
    if extension is not None:
        oid, value = extension
        builder = builder.add_extension(
            x509.UnrecognizedExtension(ObjectIdentifier(oid), value), critical=False
        )
    return builder.sign(issuer_key, hashes.SHA256(), ecdsa_deterministic=True)


def _revocations(
    name: str, key: ec.EllipticCurvePrivateKey, end: datetime, *revoked: x509.Certificate
) -> bytes:
    """A revocation list, DER."""
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
    builder = (
        x509.CertificateRevocationListBuilder(_name(name), _NOT_BEFORE, end)
        .add_extension(x509.CRLNumber(1), critical=False)
        .add_extension(authority, critical=False)
    )
    for certificate in revoked:
        entry = x509.RevokedCertificateBuilder(certificate.serial_number, _NOT_BEFORE).build()
        builder = builder.add_revoked_certificate(entry)
    return builder.sign(key, hashes.SHA256(), ecdsa_deterministic=True).public_bytes(Encoding.DER)


def _platform_extension(ppid: bytes, fmspc: bytes) -> bytes:
    """Intel's SGX extension of a PCK certificate, all security versions zero."""
    levels = [_pair(f"{_SGX}.2.{index}", _tlv(2, b"\0")) for index in range(1, 18)]
    levels.append(_pair(f"{_SGX}.2.18", _tlv(4, bytes(16))))
    return _sequence(
        _pair(f"{_SGX}.1", _tlv(4, ppid)),
        _pair(f"{_SGX}.2", _sequence(*levels)),
        _pair(f"{_SGX}.3", _tlv(4, bytes(2))),
        _pair(f"{_SGX}.4", _tlv(4, fmspc)),
        _pair(f"{_SGX}.5", _tlv(10, b"\0")),
    )


def _pair(oid: str, value: bytes) -> bytes:
    return _sequence(_oid(oid), value)


def _sequence(*parts: bytes) -> bytes:
    return _tlv(0x30, b"".join(parts))


def _oid(dotted: str) -> bytes:
    arcs = [int(arc) for arc in dotted.split(".")]
    encoded = bytearray([arcs[0] * 40 + arcs[1]])
    for arc in arcs[2:]:
        groups = [arc & 0x7F]
        while arc := arc >> 7:
            groups.append(arc & 0x7F | 0x80)
        encoded += bytes(reversed(groups))
    return _tlv(6, bytes(encoded))


def _tlv(tag: int, value: bytes) -> bytes:
    length = len(value)
    if length < 0x80:
        return bytes([tag, length]) + value
    size = length.to_bytes((length.bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(size)]) + size + value
