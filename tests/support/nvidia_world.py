"""A vendor of GPUs for tests: signs reference values, revocation answers and verdicts, or lies."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import ocsp
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from gpu_world import NONCE, NOW, Parts, hardware_policy_fields, put_together
from lxml import etree
from signxml.algorithms import DigestAlgorithm, SignatureMethod
from signxml.signer import XMLSigner

from sealtrain.attest.nvidia.collateral import RemoteVerdict
from sealtrain.attest.nvidia.device import VerifiedDevice, verify_device
from sealtrain.attest.nvidia.nras import NRAS_ISSUER
from sealtrain.attest.nvidia.parse import GpuDevice
from sealtrain.attest.nvidia.policy import NvidiaPolicy
from sealtrain.base.encoding import to_base64
from sealtrain.base.models import load_model
from sealtrain.errors import TrustInvalid
from sealtrain_rehearsal.simulator.gpu_pki import GpuPki, Signed, SimulatedDevice

HOUR = 3600
SWID = "http://standards.iso.org/iso/19770/-2/2015/schema.xsd"
HASH = "http://www.w3.org/2001/04/xmlenc#sha384"
PKI = GpuPki(b"a vendor of GPUs for tests")


def moment(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def authority(
    name: str,
    issuer: Signed | None,
    *,
    ca: bool = True,
    usages: Sequence[x509.ObjectIdentifier] = (),
    start: int = NOW - 100 * HOUR,
    end: int = NOW + 100 * HOUR,
    path_length: int | None = None,
    curve: ec.EllipticCurve | None = None,
) -> Signed:
    """A certificate with a fresh key."""
    key = ec.generate_private_key(curve or ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"SIMULATED {name}")])
    usage = x509.KeyUsage(not ca, False, False, False, False, ca, ca, False, False)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(moment(start))
        .not_valid_after(moment(end))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=path_length), critical=True)
        .add_extension(usage, critical=True)
    )
    if usages:
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=True)
    signer = key if issuer is None else issuer.key
    return Signed(builder.sign(signer, hashes.SHA384()), key)


def responder(issuer: Signed, **changes: Any) -> Signed:
    """A responder that ``issuer`` certified to answer for it."""
    usages = {"usages": [ExtendedKeyUsageOID.OCSP_SIGNING], "ca": False}
    return authority("OCSP Responder", issuer, **{**usages, **changes})


def answer(
    certificate: x509.Certificate,
    issuer: Signed,
    *,
    signer: Signed | None = None,
    status: ocsp.OCSPCertStatus = ocsp.OCSPCertStatus.GOOD,
    reason: x509.ReasonFlags | None = None,
    made: int = NOW - HOUR,
    until: int | None = NOW + 23 * HOUR,
    algorithm: hashes.HashAlgorithm | None = None,
    by_name: bool = False,
    carried: bool = True,
) -> bytes:
    """An OCSP answer, DER; by the issuer itself where no ``signer`` is given."""
    by = issuer if signer is None else signer
    revoked = status == ocsp.OCSPCertStatus.REVOKED
    builder = (
        ocsp.OCSPResponseBuilder()
        .add_response(
            cert=certificate,
            issuer=issuer.certificate,
            algorithm=algorithm or hashes.SHA384(),
            cert_status=status,
            this_update=moment(made),
            next_update=None if until is None else moment(until),
            revocation_time=moment(made - HOUR) if revoked else None,
            revocation_reason=reason,
        )
        .responder_id(
            ocsp.OCSPResponderEncoding.NAME if by_name else ocsp.OCSPResponderEncoding.HASH,
            by.certificate,
        )
    )
    if signer is not None and carried:
        builder = builder.certificates([by.certificate])
    return builder.sign(by.key, hashes.SHA384()).public_bytes(Encoding.DER)


def digest(label: str) -> bytes:
    """A measurement."""
    return hashlib.sha384(label.encode()).digest()


MEASUREMENTS = {block: digest(f"block {block}") for block in range(1, 65)}
DRIVER, VBIOS = "590.12", "96.00.A5.00.01"
DRIVER_RIM = f"NV_GPU_DRIVER_GH100_{DRIVER}"
VBIOS_RIM = "NV_GPU_VBIOS_G520_0280_895_9600A50001"
SWITCH_RIM = "NV_SWITCH_BIOS_5612_0002_890_96106D0001"


def report(
    device: SimulatedDevice,
    nonce: bytes = NONCE,
    *,
    kind: str = "gpu",
    measurements: Mapping[int, bytes] = MEASUREMENTS,
    nvdec0: bytes | None = b"\x55",
) -> bytes:
    """A signed report."""
    if kind == "gpu":
        fields = {3: DRIVER.encode() + b"\0", 6: _vbios(VBIOS)}
        fields |= {15: b"895\0", 17: b"G520\0", 18: b"0280\0", 20: device.fwid}
        fields |= {} if nvdec0 is None else {11: nvdec0}
    else:
        fields = {6: b"96.10.6D.00.01\0", 22: device.pdi, 20: device.fwid}
    said = Parts(nonce, tuple(measurements.items()), tuple(fields.items()))
    return put_together(said, device.key)


def verified(kind: str = "gpu", number: int = 0, **changes: Any) -> VerifiedDevice:
    """A device that went through the verifier under this vendor's root."""
    device = PKI.device("GH100" if kind == "gpu" else "LS_10", number)
    shown = GpuDevice.build(
        "HOPPER" if kind == "gpu" else "LS10", report(device, kind=kind, **changes), device.pem
    )
    return verify_device(shown, simulator_root=PKI.root.der, now=NOW)


def _vbios(text: str) -> bytes:
    """The reverse of how a GPU's report is read: last part in the other half, then backwards."""
    parts = bytes.fromhex(text.replace(".", ""))
    return (bytes(3) + parts[4:] + parts[:4])[::-1]


def policy(**changes: Any) -> NvidiaPolicy:
    """A policy that trusts this vendor and asks for everything."""
    rules = {
        "root": {"insecure_simulator_root": to_base64(PKI.root.der)},
        "rim_root": {"insecure_simulator_root": to_base64(PKI.rim_signer[-1].der)},
        "switch_count": "any",
        "mode": ["single"],
        **dict.fromkeys(("reference_values", "revocation", "nras"), "require"),
    }
    fields = hardware_policy_fields(**rules | changes)
    return load_model(NvidiaPolicy, fields, TrustInvalid, "policy")


def swid(
    version: str, measurements: Mapping[int, Sequence[bytes]], *, inactive: Sequence[int] = ()
) -> etree._Element:
    """An unsigned list of reference values, shaped like the vendor's."""
    root = etree.Element(f"{{{SWID}}}SoftwareIdentity", nsmap={None: SWID, "ns2": HASH})
    root.set("name", "GH100")
    etree.SubElement(
        root, f"{{{SWID}}}Meta", colloquialVersion=version, edition="GPU", product="GH100"
    )
    payload = etree.SubElement(root, f"{{{SWID}}}Payload")
    for index, digests in measurements.items():
        resource = etree.SubElement(
            payload,
            f"{{{SWID}}}Resource",
            type="Measurement",
            index=str(index),
            active="False" if index in inactive else "True",
            alternatives=str(len(digests)),
            size="48",
            name=f"Measurement_{index}",
        )
        for place, digest in enumerate(digests):
            resource.set(f"{{{HASH}}}Hash{place}", digest.hex())
    return root


def sign_swid(
    root: etree._Element, chain: Sequence[Signed] | None = None, **arguments: Any
) -> bytes:
    """Sign with the first of ``chain`` and put all its certificates beside the signature."""
    signers = PKI.rim_signer if chain is None else chain
    signer = XMLSigner(
        signature_algorithm=SignatureMethod.ECDSA_SHA384, digest_algorithm=DigestAlgorithm.SHA384
    )
    signed = signer.sign(
        root, key=signers[0].key, cert=[signer.certificate for signer in signers], **arguments
    )
    return bytes(etree.tostring(signed))


def rim(version: str, measurements: Mapping[int, Sequence[bytes]], **arguments: Any) -> bytes:
    """A signed file of reference values."""
    inactive = arguments.pop("inactive", ())
    return sign_swid(swid(version, measurements, inactive=inactive), **arguments)


class Service:
    """An attestation service with one key of the day."""

    def __init__(self, kid: str = "nv-eat-kid-test-1") -> None:
        self.kid = kid
        self.key = ec.generate_private_key(ec.SECP384R1())

    @property
    def jwks(self) -> str:
        public = jwt.algorithms.ECAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
        return json.dumps({"keys": [{**public, "kid": self.kid}]})

    def token(self, claims: Mapping[str, Any], **header: Any) -> str:
        # Not jwt.encode: it looks at claims, and some of these are wrong on purpose.
        return jwt.PyJWS().encode(
            json.dumps(claims).encode(),
            self.key,
            algorithm="ES384",
            headers={"kid": self.kid, **header},
        )

    def verdict(
        self,
        devices: Mapping[str, Mapping[str, Any]],
        *,
        overall: Callable[[dict[str, Any]], None] = lambda claims: None,
        tokens: Callable[[dict[str, str]], None] = lambda tokens: None,
        version: str = "3.0",
    ) -> RemoteVerdict:
        """A verdict about devices; ``tokens`` changes what is sent, after it was digested."""
        signed = {name: self.token(claims) for name, claims in devices.items()}
        claims = {
            "sub": "NVIDIA-PLATFORM-ATTESTATION",
            "x-nvidia-ver": version,
            "x-nvidia-overall-att-result": True,
            "submods": {
                name: ["DIGEST", ["SHA-256", hashlib.sha256(token.encode()).hexdigest()]]
                for name, token in signed.items()
            },
            **common(),
        }
        overall(claims)
        tokens(signed)
        return RemoteVerdict(
            token=json.dumps([["JWT", self.token(claims)], signed]), jwks=self.jwks
        )


def common(**changes: Any) -> dict[str, Any]:
    """Claims that every token has."""
    return {
        "iss": NRAS_ISSUER,
        "eat_nonce": NONCE.hex(),
        "iat": NOW - HOUR // 2,
        "nbf": NOW - HOUR // 2,
        "exp": NOW + HOUR // 2,
        "jti": "0b0e",
        **changes,
    }


def device_claims(version: str = "3.0", **changes: Any) -> dict[str, Any]:
    """What the service says of a GPU it found in order."""
    passed = [
        "arch-check",
        "attestation-report-parsed",
        "attestation-report-nonce-match",
        "attestation-report-signature-verified",
        "vbios-index-no-conflict",
    ]
    for kind in ("driver", "vbios"):
        checks = ("fetched", "schema-validated", "signature-verified", "measurements-available")
        passed += [f"{kind}-rim-{check}" for check in checks]
    chains = ["attestation-report", "driver-rim", "vbios-rim"]
    claims: dict[str, Any] = {}
    if version == "2.0":
        passed += ["attestation-report-cert-chain-validated"]
        passed += ["driver-rim-cert-validated", "vbios-rim-cert-validated"]
    else:
        passed += ["attestation-report-cert-chain-fwid-match"]
        passed += ["driver-rim-version-match", "vbios-rim-version-match"]
        for chain in chains:
            claims[f"x-nvidia-gpu-{chain}-cert-chain"] = {
                "x-nvidia-cert-status": "valid",
                "x-nvidia-cert-ocsp-status": "good",
                "x-nvidia-cert-expiration-date": "9999-12-31T23:59:59Z",
                "x-nvidia-cert-revocation-reason": None,
            }
    return {
        **common(),
        **claims,
        **{f"x-nvidia-gpu-{check}": True for check in passed},
        "ueid": "1",
        "oemid": "5703",
        "hwmodel": "GH100 A01 GSP BROM",
        "measres": "success",
        "secboot": True,
        "dbgstat": "disabled",
        "x-nvidia-gpu-driver-version": "590.12",
        "x-nvidia-gpu-vbios-version": "96.00.A5.00.01",
        "x-nvidia-attestation-warning": None,
        **changes,
    }
