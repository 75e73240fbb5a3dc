"""A software Nitro Secure Module with its own PKI: the device's requests, the device's documents.

Keys follow from a seed; every certificate name begins with SIMULATED and lives as long as AWS's do
(leaf three hours, instance a day, zone a week, region three weeks). The documents pass the same
verification code under this root; under AWS's root they are refused as simulated.

A module can be told to lie in a named way, for tests and for teaching (``FAULTS``).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from sealtrain.attest.errors import EvidenceMalformed
from sealtrain.attest.nitro.cbor import decode, encode
from sealtrain.attest.nitro.parse import PCR_BYTES
from sealtrain.attest.nitro.verify import PARENT_PCR, extend
from sealtrain.base.clock import Clock
from sealtrain.errors import DataInvalid
from sealtrain_rehearsal.simulator.seeds import key_of, octets

FAULT_MEANINGS = {
    "debug-pcrs": "debug mode: the image's registers are zero (debug-guest)",
    "stale-document": "a document of four hours ago (evidence-stale)",
    "future-document": "a document of the next hour (evidence-stale)",
    "wrong-root": "another vendor of the same name (quote-root-untrusted)",
    "bad-signature": "one bit of the signature is wrong (quote-invalid)",
    "expired-leaf": "the module's certificate has ended (certificate-chain-invalid)",
    "wrong-parent": "PCR4 names another instance than the module id (measurement-mismatch)",
    "other-image": "another image was started (measurement-mismatch)",
}
"""Faults of a module, and the refusal that each must end in."""

FAULTS = tuple(FAULT_MEANINGS)
"""Their names."""

HOUR = 3600
DAY = 24 * HOUR
_PARENT = "i-00000000000000001"
_ENCLAVE = "0000000000000001"
_ROLE_ARN = b"arn:aws:iam::000000000000:role/SIMULATED"
_UNSET = bytes(PCR_BYTES)
_BOOT_PCRS = 16  # the platform locks the first sixteen before the enclave runs
_ALL_PCRS = 32
_RANDOM_BYTES = 256
_ECDSA = ec.ECDSA(hashes.SHA384(), deterministic_signing=True)
_ROOT_NAME = "SIMULATED aws.nitro-enclaves"
_ROOT_DATES = (1_577_836_800, 2_524_521_600)  # 2020 to 2050


@dataclass(frozen=True, slots=True)
class Issued:
    """Issuers from the root down, the leaf under them, and the leaf's key."""

    cabundle: list[bytes]
    leaf: bytes
    key: ec.EllipticCurvePrivateKey


class SimulatedNitroPki:
    """One simulated vendor. The same seed gives the same root on every machine.

    Args:
        seed: At least 16 bytes.
    """

    def __init__(self, seed: bytes) -> None:
        if len(seed) < 16:
            raise DataInvalid("simulated PKI needs a seed of at least 16 bytes")
        self._seed = bytes(seed)
        self._root_key = self._key("root")
        self.root_der = _certificate(
            (_ROOT_NAME, self._root_key), (_ROOT_NAME, self._root_key), _ROOT_DATES, path=None
        )

    def issue(self, module_id: str, start: int) -> Issued:
        """A chain of five for a module whose leaf lives three hours from ``start``."""
        parent = module_id.rpartition("-")[0]
        ladder = (
            ("region.us-east-1", 2, 21 * DAY),
            ("zonal.us-east-1", 1, 7 * DAY),
            (f"{parent}.us-east-1", 0, DAY),
        )
        issuer, bundle = (_ROOT_NAME, self._root_key), [self.root_der]
        for label, path, life in ladder:
            subject = (f"SIMULATED {label}.aws.nitro-enclaves", self._key(label))
            bundle.append(_certificate(subject, issuer, (start, start + life), path=path))
            issuer = subject
        key = self._key(module_id)
        subject = (f"SIMULATED {module_id}.us-east-1.aws", key)
        leaf = _certificate(subject, issuer, (start, start + 3 * HOUR), path=None, leaf=True)
        return Issued(bundle, leaf, key)

    def foreign(self) -> SimulatedNitroPki:
        """Another vendor of the same name, which is not trusted."""
        return SimulatedNitroPki(self._derive("foreign"))

    def _derive(self, label: str) -> bytes:
        return octets(self._seed, "nitro", label, 64)

    def _key(self, label: str) -> ec.EllipticCurvePrivateKey:
        return key_of(self._derive(label), ec.SECP384R1())


def simulate_image(name: str) -> tuple[bytes, bytes, bytes]:
    """PCR0, PCR1 and PCR2 of an image that exists by name only."""
    values = (hashlib.sha384(f"SIMULATED {name} PCR{n}".encode()).digest() for n in range(3))
    first, second, third = values
    return first, second, third


class SimulatedNsm:
    """One enclave's module; call it with a request as one calls a device (``collect.Nsm``).

    Args:
        pki: Signs.
        clock: The module's time.
        image: Name of the image that the enclave started from.
        parent: Instance id of the parent.
        enclave: The enclave's id, 16 hex digits.
        fault: One of ``FAULTS``, or ``None`` to tell the truth.
        measured: PCR 0, 1 and 2 of an image file, in place of those of a name.
        randomness: Gives so many random bytes.
    """

    def __init__(
        self,
        pki: SimulatedNitroPki,
        *,
        clock: Clock,
        image: str = "enclave",
        parent: str = _PARENT,
        enclave: str = _ENCLAVE,
        fault: str | None = None,
        measured: tuple[bytes, bytes, bytes] | None = None,
        randomness: Callable[[int], bytes] = os.urandom,
    ) -> None:
        if fault is not None and fault not in FAULTS:
            raise DataInvalid("no such fault", got=fault[:40], expected=", ".join(FAULTS))
        self._pki = pki.foreign() if fault == "wrong-root" else pki
        self._clock, self._fault = clock, fault
        self.module_id = f"{parent}-enc{enclave}"
        named = "i-0000000000000ffff" if fault == "wrong-parent" else parent
        if measured is None:
            measured = simulate_image("another" if fault == "other-image" else image)
        self._randomness = randomness
        if fault == "debug-pcrs":
            measured = (_UNSET, _UNSET, _UNSET)
        self._pcrs = dict.fromkeys(range(_ALL_PCRS), _UNSET)
        self._pcrs.update(enumerate(measured))
        self._pcrs[3] = extend(_UNSET, _ROLE_ARN)
        self._pcrs[PARENT_PCR] = extend(_UNSET, named.encode("ascii"))
        self._locked = set(range(_BOOT_PCRS))
        self._issued: tuple[int, Issued] | None = None

    def __call__(self, request: bytes) -> bytes:
        """Answer one request of the device's API; what is unknown or wrong gets ``Error``."""
        try:
            value = decode(request, "request")
            if value == "GetRandom":
                return encode({value: {"random": self._randomness(_RANDOM_BYTES)}})
            ((name, fields),) = value.items()
            return encode(self._answer(name, fields))
        except _RefusedError as refused:
            return encode({"Error": str(refused)})
        except (EvidenceMalformed, AttributeError, TypeError, ValueError, KeyError):
            return encode({"Error": "InvalidArgument"})

    def _answer(self, name: str, fields: dict[str, Any]) -> Any:
        if name == "Attestation":
            for value in fields.values():
                if value is not None and len(bytes(value)) > 1024:
                    raise _RefusedError("InputTooLarge")
            return {name: {"document": self._document(fields)}}
        index = fields["index"]
        if index not in self._pcrs:
            raise _RefusedError("InvalidIndex")
        if name == "DescribePCR":
            return {name: {"lock": index in self._locked, "data": self._pcrs[index]}}
        if index in self._locked:
            raise _RefusedError("ReadOnlyIndex")
        if name == "ExtendPCR":
            self._pcrs[index] = extend(self._pcrs[index], bytes(fields["data"]))
            return {name: {"data": self._pcrs[index]}}
        if name == "LockPCR":
            self._locked.add(index)
            return name
        raise _RefusedError("InvalidOperation")

    def _document(self, fields: Mapping[str, bytes | None]) -> bytes:
        now = self._clock()
        made = now + {"stale-document": -4 * HOUR, "future-document": HOUR}.get(
            self._fault or "", 0
        )
        return sign_document(
            self._chain(now),
            {
                "module_id": self.module_id,
                "digest": "SHA384",
                "timestamp": made * 1000,
                "pcrs": {index: self._pcrs[index] for index in sorted(self._locked)},
            },
            fields,
            broken=self._fault == "bad-signature",
        )

    def _chain(self, now: int) -> Issued:
        """The chain of this module, which it keeps for most of its leaf's life.

        So a document that is made after a run has ended comes with a leaf that lived when it did.
        The leaf lives at the verification time also where the document says that it is old.
        """
        if self._fault == "expired-leaf":
            return self._pki.issue(self.module_id, now - 4 * HOUR)
        if self._issued is None or not self._issued[0] <= now < self._issued[0] + 2 * HOUR:
            self._issued = now - 1, self._pki.issue(self.module_id, now - 1)
        return self._issued[1]


def sign_document(
    chain: Issued,
    named: Mapping[str, Any],
    fields: Mapping[str, bytes | None],
    *,
    broken: bool = False,
) -> bytes:
    """A document of an enclave's module or of a NitroTPM (COSE_Sign1).

    Args:
        chain: Signs, and comes along.
        named: Fields that the module fills in.
        fields: Fields that the caller asked for.
        broken: Alter one bit of the signature.
    """
    payload = encode(
        {
            **named,
            "certificate": chain.leaf,
            "cabundle": chain.cabundle,
            "public_key": fields.get("public_key"),
            "user_data": fields.get("user_data"),
            "nonce": fields.get("nonce"),
        }
    )
    protected = encode({1: -35})
    r, s = decode_dss_signature(
        chain.key.sign(encode(["Signature1", protected, b"", payload]), _ECDSA)
    )
    if broken:
        s ^= 1
    signature = r.to_bytes(PCR_BYTES, "big") + s.to_bytes(PCR_BYTES, "big")
    return encode([protected, {}, payload, signature])


class _RefusedError(Exception):
    """An answer of the module's list of errors."""


def _certificate(
    subject: tuple[str, ec.EllipticCurvePrivateKey],
    issuer: tuple[str, ec.EllipticCurvePrivateKey],
    dates: tuple[int, int],
    *,
    path: int | None,
    leaf: bool = False,
) -> bytes:
    serial = int.from_bytes(hashlib.sha256(f"{subject[0]} {dates[0]}".encode()).digest()[:8], "big")
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=leaf,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=not leaf,
        crl_sign=not leaf,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        x509.CertificateBuilder(
            _name(issuer[0]), _name(subject[0]), subject[1].public_key(), serial >> 1 | 1
        )
        .not_valid_before(datetime.fromtimestamp(dates[0], UTC))
        .not_valid_after(datetime.fromtimestamp(dates[1], UTC))
        .add_extension(x509.BasicConstraints(ca=not leaf, path_length=path), critical=True)
        .add_extension(usage, critical=not leaf)
        .sign(issuer[1], hashes.SHA384(), ecdsa_deterministic=True)
    )
    return certificate.public_bytes(Encoding.DER)


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
