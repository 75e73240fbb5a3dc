"""Simulated enclaves that tell the truth, and documents forged one detail at a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import Any

import cbor2
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from guests import require_rules, verified_guest

from sealtrain.attest.claims import Claim
from sealtrain.attest.nitro.appraise import RULES
from sealtrain.attest.nitro.collect import attestation, measure_compose
from sealtrain.attest.nitro.policy import NitroPolicy
from sealtrain.attest.nitro.verify import VerifiedDocument
from sealtrain.attest.tee import VerifiedGuest
from sealtrain_rehearsal.simulator.nitro import SimulatedNitroPki, SimulatedNsm, simulate_image

NOW = 1_800_000_000
HOUR = 3600
COMPOSE = b'{"name":"enclave"}\n'
ASKED = bytes(range(64))
PKI = SimulatedNitroPki(b"tests of simulated Nitro enclaves")
P384_ORDER = int(
    "ffffffffffffffffffffffffffffffffffffffffffffffffc7634d81f4372ddf"
    "581a0db248b0a77aecec196accc52973",
    16,
)
IMAGE = dict(
    zip(("pcr0", "pcr1", "pcr2"), (v.hex() for v in simulate_image("enclave")), strict=True)
)


def policy(**changes: Any) -> NitroPolicy:
    """Accepts any production enclave, but for ``changes``."""
    fields: dict[str, Any] = {
        "tee": "nitro",
        "images": "any",
        "signers": "any",
        "parents": "any",
        "iam_roles": "any",
        "max_age_s": 300,
        "debug": "refuse",
    }
    return NitroPolicy.model_validate(fields | changes)


def enclave(fault: str | None = None, now: int = NOW, **options: Any) -> SimulatedNsm:
    """An enclave whose init has measured ``COMPOSE``."""
    nsm = SimulatedNsm(PKI, clock=lambda: now, fault=fault, **options)
    measure_compose(nsm, COMPOSE)
    return nsm


@cache
def genuine() -> bytes:
    """A document of an honest simulated enclave, made at ``NOW``."""
    return attestation(enclave(), user_data=ASKED)


def verified(
    document: bytes, compose: bytes = COMPOSE, **changes: Any
) -> VerifiedGuest[VerifiedDocument]:
    """Verify under the simulator's root at ``NOW``, but for ``changes``."""
    arguments: dict[str, Any] = {"simulator_root": PKI.root_der, "now": NOW} | changes
    return verified_guest("nitro", {"document_bytes": document}, compose, policy(), **arguments)


def claims_of(
    guest: VerifiedGuest[VerifiedDocument], policy: NitroPolicy, now: int
) -> tuple[Claim, ...]:
    """What holds of an enclave; raises for the first comparison that does not."""
    return require_rules(RULES, guest.signed, policy, now)


@cache
def key(label: str, curve: type[ec.EllipticCurve] = ec.SECP384R1) -> ec.EllipticCurvePrivateKey:
    del label  # one key a label
    return ec.generate_private_key(curve())


@dataclass
class Role:
    """One certificate of a forged chain."""

    name: str
    ca: bool = True
    path: int | None = None
    dates: tuple[int, int] = (NOW - HOUR, NOW + HOUR)
    signs_certificates: bool = True
    signs_documents: bool = False
    curve: type[ec.EllipticCurve] = ec.SECP384R1
    algorithm: hashes.HashAlgorithm = field(default_factory=hashes.SHA384)
    issuer_name: str | None = None
    signed_by: str | None = None
    constraints: bool = True
    unknown_critical: bool = False


def roles(**changes: dict[str, Any]) -> list[Role]:
    """Root, zone, instance and leaf as AWS makes them, but for ``changes`` by name."""
    honest: dict[str, dict[str, Any]] = {
        "root": {},
        "zone": {"path": 1},
        "instance": {"path": 0},
        "leaf": {"ca": False, "signs_certificates": False, "signs_documents": True},
    }
    return [
        Role(**{"name": f"SIMULATED {name}", **fields, **changes.get(name, {})})
        for name, fields in honest.items()
    ]


def certificates(chain: list[Role]) -> list[bytes]:
    """DER of a chain, the root first; every key follows from its role's name."""
    made = []
    for above, role in zip([chain[0], *chain], chain, strict=False):
        usage = x509.KeyUsage(
            digital_signature=role.signs_documents,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=role.signs_certificates,
            crl_sign=False,
            encipher_only=False,
            decipher_only=False,
        )
        builder = (
            x509.CertificateBuilder(
                _name(role.issuer_name or above.name),
                _name(role.name),
                key(role.name, role.curve).public_key(),
                7,
            )
            .not_valid_before(datetime.fromtimestamp(role.dates[0], UTC))
            .not_valid_after(datetime.fromtimestamp(role.dates[1], UTC))
            .add_extension(usage, critical=True)
        )
        if role.constraints:
            limits = x509.BasicConstraints(ca=role.ca, path_length=role.path if role.ca else None)
            builder = builder.add_extension(limits, critical=True)
        if role.unknown_critical:
            unknown = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4.5"), b"\x05\x00")
            builder = builder.add_extension(unknown, critical=True)
        signer = key(role.signed_by or above.name, above.curve)
        made.append(builder.sign(signer, role.algorithm).public_bytes(Encoding.DER))
    return made


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def fields(document: bytes) -> dict[str, Any]:
    """The payload of a document, to change and sign again."""
    payload: dict[str, Any] = cbor2.loads(cbor2.loads(document)[2])
    return payload


@cache
def _default_chain() -> tuple[bytes, ...]:
    return tuple(certificates(roles()))


@dataclass
class Forged:
    """A document and the root under which it would be true."""

    document: bytes
    root: bytes


def forge(
    chain: list[Role] | None = None,
    *,
    payload: bytes | None = None,
    protected: bytes = b"\xa1\x01\x38\x22",
    unprotected: Any = None,
    without: tuple[str, ...] = (),
    signature: bytes | None = None,
    **changes: Any,
) -> Forged:
    """The genuine document, changed and signed again by a throw-away chain.

    Args:
        chain: ``roles(…)``, or the honest ones.
        payload: Raw payload instead of the changed one; ``{chain}`` fields are not filled in.
        protected: Protected header.
        unprotected: Unprotected header, the empty map where ``None``.
        without: Payload fields to leave out.
        signature: Instead of the true one.
        changes: Payload fields to replace.
    """
    ders = list(_default_chain()) if chain is None else certificates(chain)
    last = chain[-1] if chain else roles()[-1]
    content = fields(genuine()) | {"cabundle": ders[:-1], "certificate": ders[-1]} | changes
    for name in without:
        del content[name]
    if payload is None:
        payload = cbor2.dumps(content)
    if signature is None:
        signature = sign(key(last.name, last.curve), protected, payload)
    outer = [protected, {} if unprotected is None else unprotected, payload, signature]
    return Forged(cbor2.dumps(outer), ders[0])


def sign(signer: ec.EllipticCurvePrivateKey, protected: bytes, payload: bytes) -> bytes:
    """ES384 as COSE writes it."""
    signed = cbor2.dumps(["Signature1", protected, b"", payload])
    r, s = decode_dss_signature(signer.sign(signed, ec.ECDSA(hashes.SHA384())))
    return r.to_bytes(48, "big") + s.to_bytes(48, "big")
